// Package pushjournal records the pushes in progress on disk. After a crash the next server reads the journal and knows
// which lock files the killed Git processes may have left, and which atomic pushes it has to complete.
//
// # Directory
//
// The journal is a directory with one file for each push. The file's name is the ID of the push. The file exists from
// before git receive-pack is started until everything that the push may have left behind is removed.
//
// # Lock
//
// The server holds an exclusive flock(2) on the file. git receive-pack and all processes that it starts inherit the
// descriptor, and with it the lock. So the push has processes left as long as the file is locked, whichever of them was
// killed. The lock works on local file systems only.
//
// # File
//
// A file is text. Each line is a word and its value, and strings are quoted as in Go:
//
//	push 1                          version of the format, always the first line
//	git-dir "/srv/git/a.git"        directory of the repository
//	common-dir "/srv/git/a.git"     the same, or the main repository of a linked worktree
//	start 1764085712000000000       when the push began, in nanoseconds since 1970
//	committer "NAME=value"          atomic pushes: environment variable for git update-ref, any number of lines
//	disable "hook.x.enabled"        atomic pushes: configuration key to set to false, any number of lines
//	head                            the push also locks HEAD
//	ref ID "refs/heads/main"        a ref that the push may lock, and its new value; "-" means that it is deleted
//	old ID "refs/heads/main"        atomic pushes: value of a ref before the push; "-" means that it did not exist
//	end                             the record is complete
//	agreed                          atomic pushes: every hook has accepted all updates
//
// Git is started only after the end line is written. A file without that line therefore belongs to a push that changed
// nothing, and is removed. The agreed line is written later, when Git is about to change the refs.
//
// The file is not synced: locks that are older than the boot of the machine are recognized by their time.
package pushjournal
