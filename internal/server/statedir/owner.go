package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Owner is the owner of the files that a command creates. A command that runs as root for a server of another user
// creates files that the server can read and remove.
type Owner struct{ Uid, Gid int }

// Self returns the user of this process.
func Self() Owner { return Owner{os.Geteuid(), os.Getegid()} }

// OwnerOf returns the owner of a file.
func OwnerOf(path string) (Owner, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return Owner{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Owner{int(s.Uid), int(s.Gid)}, nil
}

// IsOther reports whether this process runs as root and the owner is another user.
func (o Owner) IsOther() bool { return os.Geteuid() == 0 && o.Uid != 0 }

// own makes the owner the owner of a new file or directory, if this process may do so. Another user may be able to
// replace the file in its directory. Therefore a file with a second name is refused.
func (o Owner) own(path string) error {
	if !o.IsOther() {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.IsDir() && info.Sys().(*syscall.Stat_t).Nlink != 1 {
		err = &fs.PathError{Op: "chown", Path: path, Err: errors.New("it is not the file that was made")}
	}
	if err != nil {
		return err
	}
	return f.Chown(o.Uid, o.Gid)
}

// mkdirAll is os.MkdirAll with mode 0700 and this owner for each new directory.
func (o Owner) mkdirAll(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := o.mkdirAll(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	switch {
	case err == nil:
		return o.own(dir)
	case errors.Is(err, fs.ErrExist):
		if info, failed := os.Stat(dir); failed == nil && info.IsDir() {
			return nil
		}
	}
	return err
}

// MakeStateDir creates a state directory. Only its owner may read it, because the cache has content of repositories.
func (o Owner) MakeStateDir(dir string) error {
	if err := o.mkdirAll(dir); err != nil {
		return fmt.Errorf("make the state directory: %w; name a writable directory with --state", err)
	}
	return nil
}

// TrustedFile resolves the symbolic links of a path. It fails if users other than root and this process's user can
// change or replace the file. A command of root must not trust a configuration that the server's user may write,
// because a configuration names programs.
func TrustedFile(path string) (string, error) {
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	me, others := os.Geteuid(), fs.FileMode(0o022)
	if me != 0 {
		others = 0o002 // many users have a private group with all rights
	}
	for at := file; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		uid := int(info.Sys().(*syscall.Stat_t).Uid)
		open := info.Mode()&others != 0 && (at == file || info.Mode()&fs.ModeSticky == 0)
		if uid != 0 && uid != me || open {
			return "", fmt.Errorf("%s: others than root and this user may write it", at)
		}
		if filepath.Dir(at) == at {
			return file, nil
		}
	}
}

// Name returns the owner's name for a message.
func (o Owner) Name() string {
	if u, err := user.LookupId(strconv.Itoa(o.Uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("user %d", o.Uid)
}

// Become makes the process run as the owner with the owner's groups. Only root can do so.
func (o Owner) Become() error {
	groups, gid := []int{}, o.Gid
	if u, err := user.LookupId(strconv.Itoa(o.Uid)); err == nil {
		gid, _ = strconv.Atoi(u.Gid)
		ids, _ := u.GroupIds() // a user without further groups has that of the passwd file
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				groups = append(groups, n)
			}
		}
	}
	err := syscall.Setgroups(groups)
	if err == nil {
		err = syscall.Setgid(gid)
	}
	if err == nil {
		err = syscall.Setuid(o.Uid)
	}
	if err != nil {
		return fmt.Errorf("run as %s, who owns the repositories: %w", o.Name(), err)
	}
	return nil
}
