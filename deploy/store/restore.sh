#!/bin/sh
# Restores repositories from the bucket of a store, without Packhorse. It needs sh, awk, curl 7.86 or newer, sha256sum or
# shasum, and git. It only reads the bucket, and verifies the SHA-256 of each object.
#
#   restore.sh s3://BUCKET/PREFIX DIR                      restores all repositories as bare repositories below DIR
#   restore.sh s3://BUCKET/PREFIX DIR team/app             restores one
#   restore.sh -n 41 s3://BUCKET/PREFIX DIR team/app       restores its state after record 41
#   restore.sh -l s3://BUCKET/PREFIX [team/app]            lists repositories, or one: path, ID, record, time
#
# Environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (if temporary), AWS_REGION (us-east-1), and for
# other servers than Amazon S3, S3_ENDPOINT, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (https://s3.example.com).
#
# The bucket has for each repository PREFIX/repos/ID/: records in log/, the newest first in a list, packs in packs/, and
# lists of refs in refs/, in git's packed-refs format. The newest record names all objects of the repository and the
# changes of refs since its list of refs. Objects of Git LFS are in lfs/, and all belong to the repository. That is all
# that you need to know to restore a repository by hand.
set -eu
export LC_ALL=C

die() { echo "restore.sh: $*" >&2; exit 1; }
usage() { sed -n '5,11s/^# *//p' "$0" >&2; exit 2; }

record= list_only=
while getopts ln: option; do
	case $option in
	l) list_only=yes ;;
	n) record=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
if [ -n "$list_only" ]; then [ $# = 1 ] || [ $# = 2 ] || usage; else [ $# -ge 2 ] || usage; fi
[ -z "$record" ] || [ $# = 3 ] || usage
: "${AWS_ACCESS_KEY_ID:?set AWS_ACCESS_KEY_ID}" "${AWS_SECRET_ACCESS_KEY:?set AWS_SECRET_ACCESS_KEY}"

url=$1 dir=${2-}
[ -z "$list_only" ] || dir=
case $url in s3://?*) ;; *) die "the URL of a store is s3://BUCKET/PREFIX" ;; esac
bucket=${url#s3://}
prefix=${bucket#"${bucket%%/*}"}
bucket=${bucket%%/*}
prefix=${prefix#/} prefix=${prefix%/}
[ -z "$prefix" ] || prefix=$prefix/
region=${AWS_REGION:-us-east-1}
endpoint=${S3_ENDPOINT:-${AWS_ENDPOINT_URL_S3:-${AWS_ENDPOINT_URL-}}}
if [ -n "$endpoint" ]; then
	base=${endpoint%/}/$bucket
else
	base=https://$bucket.s3.$region.amazonaws.com
fi
if command -v sha256sum >/dev/null; then sum=sha256sum; else sum="shasum -a 256"; fi

# get PATH-AND-QUERY: writes an object or a list to standard output. Secrets are not in the arguments of a process.
get() {
	{
		printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
		[ -z "${AWS_SESSION_TOKEN-}" ] || printf 'header = "x-amz-security-token: %s"\n' "$AWS_SESSION_TOKEN"
	} | curl -K - -fsS --retry 5 --aws-sigv4 "aws:amz:$region:s3" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$base/$1" ||
		die "cannot read $base/$1"
}

# quote TEXT: escapes what occurs in prefixes and in tokens of lists for a query.
quote() { printf %s "$1" | sed 's/%/%25/g; s/+/%2B/g; s,/,%2F,g; s/=/%3D/g; s/&amp;/%26/g; s/ /%20/g; s/!/%21/g'; }

# escape PATH: writes the path of a repository as it is in keys.
escape() {
	printf %s "$1" | awk 'BEGIN { for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i }
		{ for (i = 1; i <= length($0); i++) { c = substr($0, i, 1); printf "%s", c ~ /[-a-z0-9_.\/]/ ? c : sprintf("~%02x", code[c]) } }'
}

# elements NAME: writes the text of each element of this name in XML.
elements() { grep -o "<$1>[^<]*</$1>" | sed 's/<[^>]*>//g' || :; }

# ids: lists the IDs of all repositories.
ids() {
	token=
	while :; do
		page=$(get "?${token:+continuation-token=$(quote "$token")&}delimiter=%2F&list-type=2&prefix=$(quote "${prefix}repos/")") || return 1
		printf %s "$page" | grep -o '<CommonPrefixes>.*</CommonPrefixes>' | elements Prefix | sed 's,/$,,; s,.*/,,'
		token=$(printf %s "$page" | elements NextContinuationToken)
		[ -n "$token" ] || return 0
	done
}

# ids_of PATH: lists the ID of the repository at a path, which may also be an ID. With -n, it lists all repositories that
# the path has ever referred to.
ids_of() {
	case $1 in *[!a-z2-7]*) ;; ??????????????????????????) echo "$1" ;; esac
	[ -n "$record" ] && most=1000 || most=1
	page=$(get "?list-type=2&max-keys=$most&prefix=$(quote "${prefix}names/$(escape "$1")!/")") || return 1
	for key in $(printf %s "$page" | elements Key | sed 's/!/%21/g'); do
		get "$key" >"$work/json" || return 1
		parse <"$work/json" >"$work/record" || return 1
		[ "$(field state)" = removed ] && [ -z "$record" ] || field id
	done
}

# keys DIRECTORY: lists the keys of the repository in a directory.
keys() {
	token=
	while :; do
		page=$(get "?${token:+continuation-token=$(quote "$token")&}list-type=2&prefix=$(quote "${prefix}repos/$id/$1")") || return 1
		printf %s "$page" | elements Key
		token=$(printf %s "$page" | elements NextContinuationToken)
		[ -n "$token" ] || return 0
	done
}

# parse: reads a record and writes one line for each fact that a restore needs, with tabs between fields.
parse() {
	awk '
	function fail(text) { print "restore.sh: not a record: " text > "/dev/stderr"; exit bad = 1 }
	function hex(s,  i, n) { for (i = 1; i <= length(s); i++) n = n * 16 + index("0123456789abcdef", tolower(substr(s, i, 1))) - 1; return n }
	function utf8(n) {
		if (n < 128) return sprintf("%c", n)
		if (n < 2048) return sprintf("%c%c", 192 + int(n / 64), 128 + n % 64)
		return sprintf("%c%c%c", 224 + int(n / 4096), 128 + int(n / 64) % 64, 128 + n % 64)
	}
	# unescape decodes the escapes of JSON and of quoted Go strings, which a name has if it is not UTF-8.
	function unescape(s,  out, i, c) {
		while (i = index(s, "\\")) {
			c = substr(s, i + 1, 1)
			out = out substr(s, 1, i - 1)
			if (c == "u") { out = out utf8(hex(substr(s, i + 2, 4))); s = substr(s, i + 6) }
			else if (c == "x") { out = out sprintf("%c", hex(substr(s, i + 2, 2))); s = substr(s, i + 4) }
			else { out = out (c == "n" ? "\n" : c == "t" ? "\t" : c); s = substr(s, i + 2) }
		}
		return out s
	}
	function text(  i, s) {
		i = 2
		while (substr(json, i, 1) != "\"") { if (i > length(json)) fail("open string"); i += substr(json, i, 1) == "\\" ? 2 : 1 }
		s = unescape(substr(json, 2, i - 2))
		json = substr(json, i + 1)
		return s ~ /^"/ ? unescape(substr(s, 2, length(s) - 2)) : s
	}
	function punctuation(c) { if (substr(json, 1, 1) != c) fail("want " c " at " substr(json, 1, 20)); json = substr(json, 2) }
	# value calls fact with each value that is not an object or an array, and with the way to it.
	function value(way,  c, i, key) {
		c = substr(json, 1, 1)
		if (c == "{" || c == "[") {
			punctuation(c)
			for (i = 0; substr(json, 1, 1) !~ /[]}]/; i++) {
				if (i) punctuation(",")
				key = i
				if (c == "{") { key = text(); punctuation(":") }
				value(way == "" ? key : way "\t" key)
			}
			punctuation(c == "{" ? "}" : "]")
		} else if (c == "\"") fact(way, text())
		else if (match(json, /^[-+.0-9a-zE]+/)) { c = substr(json, 1, RLENGTH); json = substr(json, RLENGTH + 1); fact(way, c) }
		else fail("value at " substr(json, 1, 20))
	}
	function fact(way, v,  part, n) {
		n = split(way, part, "\t")
		if (part[1] == "config" && part[3] == 0) setting = v
		if (v ~ /[\t\n]/) return # no name or key has these; a value of the configuration may
		if (part[1] == "packs" && n == 3) pack[part[2], part[3]] = v
		if (part[1] == "packs" && part[2] + 1 > packs) packs = part[2] + 1
		if (part[1] == "names") print "name\t" v
		if (part[1] == "config" && part[3] == 1 && setting !~ /[\t\n]/) print "config\t" setting "\t" v
		if (part[1] == "needs" && v != "fork") fail("a newer version is needed: " v)
		if (way == "format" && v != 1) fail("a newer version is needed: format " v)
		if (n == 1) print way "\t" v
		if (way == "refs\tcheckpoint") checkpoint = v
		if (way == "refs\tsha256") checkpoint_sum = v
		if (part[1] == "refs" && part[2] == "tail" && part[4] == "set" && part[6] == 1) print "ref\t" v "\t" part[5]
	}
	{ json = json $0 }
	END {
		if (bad) exit 1
		value("")
		if (checkpoint != "") print "checkpoint\t" checkpoint "\t" checkpoint_sum
		for (i = 0; i < packs; i++) print "pack\t" pack[i, "key"] "\t" pack[i, "sha256"] "\t" pack[i, "idx_sha256"] "\t" pack[i, "from"]
	}'
}

# field NAME: writes the first value of a field of the parsed record.
field() { awk -F '\t' -v name="$1" '$1 == name { print $2; exit }' "$work/record"; }

# fetch KEY FILE SHA256 [ID]: downloads an object of the repository, or of another one, and verifies it.
fetch() {
	object=${prefix}repos/${4:-$id}/$1
	get "$object" >"$2"
	[ "$($sum <"$2" | cut -d ' ' -f 1)" = "$3" ] || die "object $object is damaged: restore it from a version of the bucket"
}

# restore NAME: makes the bare repository of the record.
restore() {
	case /$1/ in */../* | */./* | *//*) die "repository $id has the path $1" ;; esac
	to=$dir/$1.git
	if [ -e "$to" ]; then
		[ -z "$wanted" ] || die "$to exists"
		echo "skipped $1: $to exists"
		return
	fi
	echo "restoring $1 (record $(field n) of $(field at))"
	made=$work/made.git
	rm -rf "$made"
	git init -q --bare --template= --object-format="$(field object_format)" "$made"
	printf 'ref: %s\n' "$(field head)" >"$made/HEAD"
	mkdir -p "$made/objects/pack"
	tab=$(printf '\t') borrowed=
	while IFS=$tab read -r kind a b c from; do
		case $kind in
		pack)
			name=${a#packs/}
			case $name$from in *[!a-z0-9-]*) die "repository $id has the pack $a" ;; esac
			borrowed=$borrowed$from
			fetch "$a.pack" "$made/objects/pack/${name%-*}.pack" "$b" "$from" </dev/null
			fetch "$a.idx" "$made/objects/pack/${name%-*}.idx" "$c" "$from" </dev/null
			;;
		checkpoint) fetch "$a" "$made/packed-refs" "$b" </dev/null ;;
		config)
			# The list of Packhorse. Other keys could name files or programs.
			case ${a%%.*}.${a##*.} in *[!a-z0-9.-]*) die "repository $id has the configuration key $a" ;; esac
			case $a in
			receive.certnonceseed | receive.fsck.skiplist | uploadpack.packobjectshook) ;;
			receive.* | transfer.* | uploadpack.* | uploadpackfilter.* | lsrefs.* | bundle.* | http.receivepack | \
				http.uploadpack | repack.usedeltabaseoffset | core.disambiguate | lfs.quota | lfs.grace | \
				gitweb.category | gitweb.description | gitweb.owner | packhorse.archived | packhorse.label | packhorse.purged | packhorse.purgedlfs | packhorse.quota | packhorse.readonly | packhorse.unlisted)
				git --git-dir="$made" config --add -- "$a" "$b" ;;
			esac
			;;
		esac
	done <"$work/record"
	# The last change of each ref counts.
	awk -F '\t' '$1 == "ref" { last[$3] = $2 }
		END { for (ref in last) if (last[ref] == "-") print "delete " ref; else print "update " ref " " last[ref] }' \
		"$work/record" >"$work/refs"
	# One transaction cannot delete a ref and create another one below its name.
	for kind in delete update; do
		sed -n "/^$kind /p" "$work/refs" | git --git-dir="$made" update-ref --stdin
	done
	# The name of an object of Git LFS is its SHA-256. A suffix means that a collection of garbage has set it aside.
	keys lfs/ >"$work/lfs"
	while IFS= read -r key; do
		name=${key##*/}
		oid=${name%%.unnamed-*}
		case $oid in *[!0-9a-f]*) continue ;; esac
		objects=$made/lfs/objects/$(printf %.2s "$oid")/$(printf %.4s "$oid" | cut -c 3-4)
		[ ! -e "$objects/$oid" ] || continue
		mkdir -p "$objects"
		fetch "lfs/$name" "$objects/$oid" "$oid" </dev/null
	done <"$work/lfs"
	# Packs of another repository have objects that a fork must not show.
	[ -z "$borrowed" ] || git --git-dir="$made" repack -a -d -q
	mkdir -p "$(dirname "$to")"
	mv "$made" "$to"
	echo "$to" >>"$work/restored"
}

# repository [PATH...]: lists or restores the repository with the ID $id, if it has one of the paths.
repository() {
	if [ -n "$record" ]; then
		key=${prefix}repos/$id/log/$(printf %016x $((4611686018427387904 - record)))
		(get "$key" 2>/dev/null) >"$work/json" || return 0 # another repository without this record
	else
		page=$(get "?list-type=2&max-keys=1&prefix=$(quote "${prefix}repos/$id/log/")")
		key=$(printf %s "$page" | elements Key)
		[ -n "$key" ] || return 0 # an upload that never became a repository
		get "$key" >"$work/json"
	fi
	parse <"$work/json" >"$work/record"
	[ "$(field deleted)" != true ] || return 0
	awk -F '\t' '$1 == "name" { print $2 }' "$work/record" >"$work/names"
	while IFS= read -r name; do
		if [ -n "$list_only" ]; then
			printf '%s\t%s\t%s\t%s\n' "$name" "$id" "$(field n)" "$(field at)"
			continue
		fi
		match=
		for path; do
			case ${path%.git} in "$name" | "$id") match=yes ;; esac
		done
		[ -z "$wanted" ] || [ -n "$match" ] || continue
		restore "$name"
	done <"$work/names"
}

work=$(mktemp -d "${dir:-${TMPDIR:-/tmp}}/.restore-XXXXXX" 2>/dev/null) || { mkdir -p "$dir" && work=$(mktemp -d "$dir/.restore-XXXXXX"); }
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
if [ -n "$list_only" ]; then shift; else shift 2; fi
wanted=
[ $# = 0 ] || wanted=yes
if [ -n "$wanted" ]; then
	for path; do ids_of "${path%.git}" || die "cannot find $path: check the keys, AWS_REGION and S3_ENDPOINT"; done >"$work/found"
	sort -u "$work/found" >"$work/ids"
else
	ids >"$work/ids" || die "cannot list $url: check the keys, AWS_REGION and S3_ENDPOINT"
	[ -s "$work/ids" ] || die "no repositories below $url: check the prefix"
fi
: >"$work/restored"
: >"$work/failed"
while read -r id; do
	: >"$work/names"
	# A condition would turn off -e within the function.
	set +e
	(set -e; repository "$@") </dev/null
	status=$?
	set -e
	[ "$status" = 0 ] || echo "  $id $(tr '\n' ' ' <"$work/names")" >>"$work/failed"
done <"$work/ids"
[ -n "$list_only" ] || echo "restored $(($(wc -l <"$work/restored"))) repositories below $dir"
[ ! -s "$work/failed" ] || die "these repositories failed, for the reasons above:
$(cat "$work/failed")"
[ -n "$list_only" ] || [ -z "$wanted" ] || [ -s "$work/restored" ] || die "no such repository${record:+ with record $record}:" \
	"restore.sh -l lists paths and IDs; with -n, give the ID, or the path in that record"
