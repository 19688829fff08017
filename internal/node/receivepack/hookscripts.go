package receivepack

import (
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// The hooks that Git runs are scripts of this server. A script only asks the server that started Git, through two pipes
// that it inherits: descriptor 4 to the server, and 3 from it. The server runs the hooks and asks the Decider, while
// Git waits with the new objects in quarantine. If the server dies, the pipes end and the script rejects the push.
//
// The script writes one line with its event and arguments, or with objectsQuestion. pre-receive and
// reference-transaction also write their input and a line with a dot. The script reads lines for the client, which
// begin with ">", and then "yes". Everything else, and the end, means no.
//
// A proc-receive hook talks to Git through its standard input and output, so the script runs it itself. It reads the
// environment and the command, by lines that begin with "=" and "!", and reports the exit status to the server.
const (
	scriptStart = "#!/bin/sh\n# Written when the server starts. Asks the server.\n"
	scriptEnd   = `
while IFS= read -r line <&3; do
	case $line in
	'>'*) printf '%s\n' "${line#?}" >&2 ;;
	yes) exit 0 ;;
	*) exit 1 ;;
	esac
done
exit 1
`
	procReceiveScript = scriptStart + `printf 'proc-receive\n' >&4 || exit 1
set --
while IFS= read -r line <&3; do
	case $line in
	'='*) set -- "$@" "${line#?}" ;;
	'!'*)
		env -i "$@" /bin/sh -c "${line#?}" 3<&- 4>&- 5<&-
		status=$?
		printf 'proc-receive %s\n' "$status" >&4
		exit "$status"
		;;
	*) exit 1 ;;
	esac
done
exit 1
`
)

// hookScripts returns the scripts by event.
func hookScripts() map[repo.HookEvent]string {
	return map[repo.HookEvent]string{
		repo.PreReceive: scriptStart +
			`{ printf 'pre-receive %s\n' "$GIT_QUARANTINE_PATH" && cat && printf '.\n'; } >&4 || exit 1` + scriptEnd,
		repo.Update: scriptStart + `printf 'update %s %s %s\n' "$1" "$2" "$3" >&4 || exit 1` + scriptEnd,
		repo.ReferenceTransaction: scriptStart +
			`{ printf 'reference-transaction %s\n' "$1" && cat && printf '.\n'; } >&4 || exit 1` + scriptEnd,
		repo.PushToCheckout: scriptStart +
			`printf 'push-to-checkout %s %s\n' "$1" "$GIT_WORK_TREE" >&4 || exit 1` + scriptEnd,
		repo.ProcReceive: procReceiveScript,
	}
}

// objectsQuestion is the question of the script that only lets the server check the objects of the push. It starts no
// other program, and runs only if the pack may have a pointer file.
const objectsQuestion = "objects"

// checkScript is the directory with that script.
var checkScript = scriptDir{"check", []repo.HookEvent{repo.PreReceive}}

// scriptDir is a directory of scripts. There are several, because Git runs every hook that it finds.
type scriptDir struct {
	name   string
	events []repo.HookEvent
}

const scriptsOnce = "once" // the directory with the fewest events

// scriptDirs returns the directories, the one with the fewest events first. Each has pre-receive, so that the server
// can check that Git ran it.
func scriptDirs() []scriptDir {
	return []scriptDir{
		{scriptsOnce, []repo.HookEvent{repo.PreReceive}},
		{"each", []repo.HookEvent{repo.PreReceive, repo.Update}},
		{"all", []repo.HookEvent{
			repo.PreReceive, repo.Update, repo.ReferenceTransaction, repo.PushToCheckout, repo.ProcReceive,
		}},
	}
}

// writeScripts replaces the content of a directory with the scripts.
func writeScripts(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	texts := hookScripts()
	for _, d := range scriptDirs() {
		if err := writeScriptDir(dir, d, texts); err != nil {
			return err
		}
	}
	return writeScriptDir(dir, checkScript, map[repo.HookEvent]string{repo.PreReceive: scriptStart +
		`printf '` + objectsQuestion + ` %s\n' "$GIT_QUARANTINE_PATH" >&4 || exit 1` + scriptEnd})
}

func writeScriptDir(dir string, d scriptDir, texts map[repo.HookEvent]string) error {
	if err := os.MkdirAll(filepath.Join(dir, d.name), 0o700); err != nil {
		return err
	}
	for _, event := range d.events {
		if err := os.WriteFile(filepath.Join(dir, d.name, string(event)), []byte(texts[event]), 0o700); err != nil {
			return err
		}
	}
	return nil
}
