"""What somebody who looks around in the store needs beside pages: what there is, and what comes before and after."""
