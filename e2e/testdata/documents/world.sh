# A world for the commands of a page: a copy of this machine that ends with its commands, in namespaces. /srv, /etc and
# ports are its own, /packhorse is a copy of the checkout, and the hosts of the documentation are this machine.
set -euo pipefail
mount -t tmpfs none "$DIR"
world=$DIR/world
mkdir "$DIR"/{upper,work,source,source-work} "$world"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/upper,workdir=$DIR/work" "$world"
mkdir -p "$world/packhorse" "$world/opt/packhorse" "$world/home/me"
mount -t overlay overlay -o "lowerdir=$CHECKOUT,upperdir=$DIR/source,workdir=$DIR/source-work" "$world/packhorse"
mount --bind "$BIN" "$world/opt/packhorse"
mount -t proc proc "$world/proc"
mount --rbind /dev "$world/dev"
for empty in srv mnt tmp run s3 var/lib/packhorse; do
	mkdir -p "$world/$empty"
	mount -t tmpfs -o mode=1777 none "$world/$empty"
done
rm -rf "$world"/etc/{packhorse,gitconfig}
for file in passwd shadow group gshadow; do # without the user of an installed package
	if [ -f "$world/etc/$file" ]; then sed -i '/^packhorse:/d' "$world/etc/$file"; fi
done
sed -i 's|^\(root:.*\):[^:]*:\([^:]*\)$|\1:/home/me:\2|' "$world/etc/passwd" # where ssh looks for keys

ip link set lo up
address=140.82.121.3 # not a private one: mirrors and webhooks would refuse it
ip address add "$address" dev lo
printf '127.0.0.1 localhost packhorse %s\n%s %s\n' "$(uname -n)" "$address" "$HOSTS" >"$world/etc/hosts"

env=(HOME=/home/me USER=me LC_ALL=C.UTF-8 TERM=dumb TZ=UTC GIT_TERMINAL_PROMPT=0 GORACE=atexit_sleep_ms=0)
exec env -i "${env[@]}" "PATH=/opt/packhorse:$PATH" "HOSTS=$HOSTS" chroot "$world" bash -euo pipefail -c "cd; $COMMANDS"
