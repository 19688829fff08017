# What stands before the commands of a page: the user's settings, and functions for hidden set-ups.
ulimit -n 65536 2>/dev/null || : # doctor reports less as a problem
git config --system init.defaultBranch main
git config --system user.name Me
git config --system user.email me@example.com
git config --system safe.directory '*'
printf '#!/bin/sh\ncase $1 in Username*) echo me ;; *) cat ~/.token ;; esac\n' >~/.askpass
chmod 755 ~/.askpass
export GIT_ASKPASS=~/.askpass SSH_ASKPASS=~/.askpass
mkdir -m 700 ~/.ssh
echo StrictHostKeyChecking accept-new >~/.ssh/config
server=

# curl fails if the server answers with an error.
curl() {
	case " $* " in
	*" -f "* | *" --fail"*) command curl --no-progress-meter "$@" ;;
	*) command curl --no-progress-meter --fail-with-body "$@" ;;
	esac
}

# ready PROCESS COMMAND...: waits until the command succeeds.
ready() {
	local process=$1 tries=0
	shift
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		if ! kill -0 "$process" || [ $tries = 600 ]; then tail -n 5 ~/*log; return 1; fi
		sleep 0.05
	done
}

# A server in the foreground runs until the next one is started. The last token is the answer to git's question.
packhorse() {
	case "${1-} ${2-}" in
	"demo "* | "serve "* | "gateway "* | "storage "* | "mirror -"*)
		if [ $BASHPID != $$ ]; then exec packhorse "$@"; fi
		stop
		command packhorse "$@" 2>~/log &
		server=$!
		ready $server curl -f http://127.0.0.1:9090/readyz
		;;
	"token create") command packhorse "$@" | tee ~/.token ;;
	"repo remove") command packhorse "$@" <<<"$3" ;;
	*) command packhorse "$@" ;;
	esac
}

./bin/packhorse() { packhorse "$@"; }

stop() {
	if [ -n "$server" ]; then
		kill "$server"
		wait "$server" || [ $? = 143 ] # of make
		while curl -f http://127.0.0.1:9090/readyz >/dev/null 2>&1; do sleep 0.05; done
		server=
	fi
}

# checkout goes to a checkout of the project, with a short history.
checkout() {
	cd /packhorse
	rm -rf .git
	git init -q
	git add docs
	git commit -q -m Documentation
}

# make uses the programs that the tests have built.
make() {
	mkdir -p bin
	cp /opt/packhorse/packhorse* bin
	case $1 in
	build) ;;
	serve)
		stop
		command make BUILD=true "$@" >~/log 2>&1 &
		server=$!
		ready $server curl -f http://127.0.0.1:9090/readyz
		;;
	*) command make "$@" ;;
	esac
}

# repository DIR...: makes bare repositories with four commits on main, one more on topic, and the tag v1.
repository() {
	local dir
	for dir; do
		git init -q --bare "$dir"
		git -C "$dir" fast-import --quiet <<'END'
commit refs/heads/main
committer Me <me@example.com> 1764000000 +0000
data 6
First

M 100644 inline README.md
data <<.
# App
.
M 100644 inline main.go
data <<.
package main

func Handler() {}

func main() { Handler() }
.
commit refs/heads/main
committer Me <me@example.com> 1764000060 +0000
data 7
Second

M 100644 inline a.txt
data 4
one

commit refs/heads/main
committer Me <me@example.com> 1764000120 +0000
data 6
Third

commit refs/heads/main
mark :1
committer Me <me@example.com> 1764000180 +0000
data 7
Fourth

reset refs/tags/v1
from :1

commit refs/heads/topic
committer Me <me@example.com> 1764000240 +0000
data 6
Topic

from :1
M 100644 inline b.txt
data 6
topic

END
	done
}

# game DIR: makes a repository with a file in Git LFS.
game() {
	local oid
	repository "$1"
	oid=$(printf 'a large file' | sha256sum | cut -d ' ' -f 1)
	mkdir -p "$1/lfs/objects/${oid::2}/${oid:2:2}"
	printf 'a large file' >"$1/lfs/objects/${oid::2}/${oid:2:2}/$oid"
	git -C "$1" fast-import --quiet <<END
commit refs/heads/main
committer Me <me@example.com> 1764000300 +0000
data 10
Add a file
from refs/heads/main^0
M 100644 inline .gitattributes
data <<.
*.psd filter=lfs diff=lfs merge=lfs -text
.
M 100644 inline art.psd
data <<.
version https://git-lfs.github.com/spec/v1
oid sha256:$oid
size 12
.
END
}

# certificate HOST...: makes one that clients trust, in ~/world.pem and ~/world.key.
certificate() {
	local names=$*
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=world -keyout ~/world.key \
		-out ~/world.pem -addext "subjectAltName=DNS:${names// /,DNS:}" 2>/dev/null
	cat ~/world.pem >>/etc/ssl/certs/ca-certificates.crt
}

# https FLAGS...: starts a server at port 443 of the documentation's hosts.
https() {
	[ -f ~/world.pem ] || certificate $HOSTS
	command packhorse serve --http github.com:443 --ops '' --tls-cert ~/world.pem --tls-key ~/world.key "$@" 2>~/https.log &
	ready $! command curl https://github.com/
}

# s3 BUCKET: starts Amazon's S3 in eu-central-1 with a bucket, and sets its credentials.
s3() {
	export AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=my-secret
	local hosts=(s3.eu-central-1.amazonaws.com s3.dualstack.eu-central-1.amazonaws.com) n=1 host
	certificate $HOSTS "${hosts[@]/#/$1.}"
	mkdir -p "/s3/$1"
	for host in "${hosts[@]}"; do
		n=$((n + 1))
		ip address add 140.82.121.3$n dev lo
		echo "140.82.121.3$n $host $1.$host" >>/etc/hosts
		/packhorse/bin/store/versitygw --access me --secret my-secret --region eu-central-1 --port 140.82.121.3$n:443 \
			--cert ~/world.pem --key ~/world.key --virtual-domain "$host" --quiet posix /s3 >~/s3.log 2>&1 &
		ready $! command curl "https://$1.$host/"
	done
}

# go install copies a program that the tests have installed.
go() {
	case $2 in
	*/versitygw@*) cp /packhorse/bin/store/versitygw "$GOBIN" && "$GOBIN/versitygw" --version | grep -F "${2##*@}" ;;
	*) return 1 ;;
	esac
}
