#!/bin/sh
# Make the secrets of the profile `full` of docker-compose.yml in a folder: a random password of the database, the URL with it, and the
# password of the user admin of Grafana. What is there stays. Each file is for the one user that reads it.
set -eu
folder=$1
umask 077
random() {
	od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}
write() { # NAME USER TEXT
	printf '%s' "$3" >"$folder/$1.new"
	chown "$2" "$folder/$1.new"
	mv "$folder/$1.new" "$folder/$1"
	echo "wrote $folder/$1"
}
# The URL comes last: without it the database has not begun.
if [ ! -e "$folder/database_url" ]; then
	password=$(random)
	write postgres_password 999 "$password"
	write database_url 10001 "postgresql://quadriga:$password@postgres:5432/quadriga"
fi
[ -e "$folder/grafana_password" ] || write grafana_password 472 "$(random)"
