#!/bin/sh
# Make the secrets of docker-compose.yml, once: a random password of the database, the URL with it, and a key of an
# administrator.
# The files are readable for the users of the containers; the folder around them keeps other users of this machine out.
set -eu
folder=${SECRETS:-$(dirname "$0")/secrets}
if [ -e "$folder/database_url" ]; then
	echo "$folder has the secrets already: remove it to make new ones, and the volume of the database with it" >&2
	exit 1
fi
umask 022
mkdir -p -m 700 "$folder"
chmod 700 "$folder"
password=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
printf '%s' "$password" >"$folder/postgres_password"
printf 'postgresql://quadriga:%s@postgres:5432/quadriga\n' "$password" >"$folder/database_url"
printf 'quadriga-compose.%s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" >"$folder/admin_key"
echo "wrote $folder/postgres_password, $folder/database_url and $folder/admin_key"
