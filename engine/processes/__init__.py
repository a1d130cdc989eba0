"""The processes of `quadriga serve`: the supervisor, its children, the listening socket that workers share."""
