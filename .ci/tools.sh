# Functions for scripts that install tools below bin/tools; source it at the root of the repository.

# unavailable REASON ends a check that a missing tool prevents: with a failure if CI is set, and otherwise with a warning
# and 0, so that tests can be run without a network. The script defines CHECK, the name of the check.
unavailable() {
	if [ -z "${CI-}" ]; then
		echo "*** $CHECK NOT checked: $1. ***" >&2
		exit 0
	fi
	echo "$CHECK cannot be checked: $1." >&2
	exit 1
}

# install_tool DIRECTORY PROGRAM COMMAND... runs the command, which puts the program into GOBIN, unless it is installed, and
# adds the directory to PATH. A directory below bin/tools is complete: an installation that fails leaves none.
install_tool() {
	local dir=$PWD/bin/tools/$1 program=$2 new=$PWD/bin/tools/$1.$$
	shift 2
	if [ ! -x "$dir/$program" ]; then
		echo "Installing $program into bin/tools" >&2
		GOGC=400 GOBIN=$new GOFLAGS= GOOS= GOARCH= timeout -k 10 900 "$@" </dev/null >&2 || unavailable "$program cannot be installed"
		rm -rf "$dir"
		mv "$new" "$dir"
	fi
	PATH=$dir:$PATH
}
