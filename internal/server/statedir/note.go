package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// StateNote is the content of ROOT/.packhorse/state.json, with which commands find the state directory of a server with
// --state. It remains when the server ends, as its tokens do, and the next server on the root replaces it.
type StateNote struct {
	State string `json:"state"` // an absolute path
}

// maxStateNote is the maximum size of a note in bytes.
const maxStateNote = 16 << 10

// NoteFile returns the path of the note in a root.
func NoteFile(root string) string { return filepath.Join(root, ".packhorse", "state.json") }

// WriteNote records the state directory of the server in the root, or removes the note if it is the default one.
// Created files belong to the owner of the root, or to root if the state directory does.
func WriteNote(root, state string) error {
	file := NoteFile(root)
	if sameFile(state, filepath.Dir(file)) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	owner, err := OwnerOf(root)
	if err != nil {
		return err
	}
	if err := owner.mkdirAll(filepath.Dir(file)); err != nil {
		return err
	}
	text, err := json.Marshal(StateNote{state})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "state.json.*")
	if err != nil {
		return err
	}
	if of, failed := OwnerOf(state); failed == nil && of.Uid == 0 {
		owner = of
	}
	_, err = temp.Write(append(text, '\n'))
	err = errors.Join(err, temp.Chmod(0o644), owner.own(temp.Name()), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		os.Remove(temp.Name())
	}
	return err
}

// ReadNote returns the content of the note in a root, and its owner. Without a note the content is empty. If the state
// directory does not exist, its name is returned with the error. The command may run as root, so the note has to be a
// regular file of the root's owner, of the command's user or of root.
func ReadNote(root string) (state string, by Owner, err error) {
	file := NoteFile(root)
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return "", by, nil // a user who may not read the note may not administer the server
	}
	if err != nil {
		return "", by, fmt.Errorf("find the state directory: %w; name it with --state DIR", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", by, fmt.Errorf("find the state directory: %w", err)
	}
	ofRoot, err := OwnerOf(root)
	if err != nil {
		return "", by, err
	}
	writer := info.Sys().(*syscall.Stat_t)
	by = Owner{int(writer.Uid), int(writer.Gid)}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || by.Uid != ofRoot.Uid && by.Uid != 0 &&
		by.Uid != os.Geteuid() {
		return "", by, fmt.Errorf("%s: others than the owner of the root may have written it; remove it, or name the "+
			"state directory with --state DIR", file)
	}
	var note StateNote
	if err := json.NewDecoder(io.LimitReader(f, maxStateNote)).Decode(&note); err != nil || !filepath.IsAbs(note.State) {
		return "", by, fmt.Errorf("%s does not name a state directory; remove it, or name the state directory with "+
			"--state DIR", file)
	}
	if _, err := os.Stat(note.State); errors.Is(err, fs.ErrNotExist) {
		return note.State, by, fmt.Errorf("the last server on %s had its state in %s, which does not exist here; name it "+
			"with --state DIR, or remove %s", root, note.State, file)
	}
	return note.State, by, nil
}

// sameFile reports whether two paths lead to the same file, or are equal if there is no file.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	left, err := os.Stat(a)
	right, errOfB := os.Stat(b)
	return err == nil && errOfB == nil && os.SameFile(left, right)
}
