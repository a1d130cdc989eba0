#!/bin/sh
# Make the secrets of docker-compose.yml: a random password of the database, the URL with it, a key of an administrator, and
# the password of the user admin of Grafana. What is there already stays; what a newer version needs is added.
# The files are readable for the users of the containers; the folder around them keeps other users of this machine out.
set -eu
folder=${SECRETS:-$(dirname "$0")/secrets}
umask 022
mkdir -p -m 700 "$folder"
chmod 700 "$folder"
wrote=
random() {
	od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'
}
write() {
	printf '%s' "$2" >"$folder/$1"
	wrote="$wrote $folder/$1"
}
if [ ! -e "$folder/database_url" ]; then
	password=$(random 24)
	write postgres_password "$password"
	write database_url "postgresql://quadriga:$password@postgres:5432/quadriga"
fi
[ -e "$folder/admin_key" ] || write admin_key "quadriga-compose.$(random 32)"
[ -e "$folder/grafana_password" ] || write grafana_password "$(random 24)"
if [ -z "$wrote" ]; then
	echo "$folder has the secrets already: remove it to make new ones, and the volumes of the database and of Grafana with it" >&2
	exit 1
fi
echo "wrote$wrote"
