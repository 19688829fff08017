package roles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/config"
)

// target is the server that a command is about: --root, --state and --config, as the server itself was given them. The flags
// override the file.
type target struct {
	env                 Env
	root, state, config string

	named bool   // the flags or the file name the state directory
	noter *owner // who noted the state directory in the root; nil: nobody, or root
}

// addFlags defines --root, --state and --config. The usage text of --state says the default.
func (t *target) addFlags(flags *pflag.FlagSet, stateUsage string) {
	flags.StringVar(&t.root, "root", "", "the server's root `DIR`, which holds the repositories")
	flags.StringVar(&t.state, "state", "", stateUsage)
	flags.StringVar(&t.config, "config", "", "read the server's root and state directory from its configuration `FILE`")
}

// load reads the target's configuration and creates nothing. A root that is given has to exist. Without a state directory in
// the flags or the file, it is the one that the last server on the root noted there, or ROOT/.packhorse.
func (t *target) load() (config.Config, error) {
	cfg := config.DefaultConfig()
	if t.config != "" {
		if err := config.LoadFile(t.config, &cfg, config.Origins{}); err != nil {
			return cfg, usage(err)
		}
	}
	cfg.Root, cfg.State = cmp.Or(t.root, cfg.Root), cmp.Or(t.state, cfg.State)
	t.named = cfg.State != ""
	if cfg.Root == "" || t.root == "" && cfg.State != "" { // a file for all roles may name a root of another machine
		return cfg, nil
	}
	if err := config.CheckRoot(cfg.Root); err != nil || cfg.State != "" {
		return cfg, usage(err)
	}
	noted, by, err := notedState(cfg.Root)
	if by.uid != 0 {
		t.noter = &by
	}
	cfg.State = cmp.Or(noted, config.DefaultState(config.RoleServe, cfg.Root, t.env.Getenv))
	return cfg, usage(err)
}

// server is load for commands about "packhorse serve" or a storage node, which have a root; ask completes the question
// "which repositories?" with the ways to answer it.
func (t *target) server(ask string) (config.Config, error) {
	cfg, err := t.load()
	switch {
	case err != nil:
	case cfg.Root == "":
		err = usage(errors.New("which repositories? name the directory that holds them with --root DIR or --config FILE" + ask))
	default:
		err = usage(config.CheckRoot(cfg.Root))
	}
	cfg.Complete(config.RoleServe, t.env.Getenv)
	return cfg, err
}

// stateDir is the absolute path of the state directory of a server with the role, or of "packhorse serve" if the target has a
// root.
func (t *target) stateDir(role config.Role) (string, error) {
	cfg, err := t.load()
	if err != nil {
		return "", err
	}
	state := cmp.Or(cfg.State, config.DefaultState(role, "", t.env.Getenv))
	if state == "" {
		return "", usage(errors.New("which server? name its state directory with --state DIR, or its repositories with --root DIR"))
	}
	return filepath.Abs(state)
}

// stateOwner is the owner of the state directory or, before there is one, of the root. Where a note or a link in the root says which directory it
// is, that is who wrote it: whoever may write to the root does not have root's commands run as root by naming a directory of root's.
func (t *target) stateOwner(cfg *config.Config) (owner, error) {
	if t.noter != nil {
		return *t.noter, nil
	}
	if info, err := os.Lstat(cfg.State); err == nil && (t.named || info.IsDir()) {
		return ownerOf(cfg.State)
	}
	return ownerOf(cfg.Root)
}

// stateNote is the content of ROOT/.packhorse/state.json, by which commands find the state directory of a server that has
// --state. It stays when the server ends, since its tokens stay, too, and the next server on the root replaces it.
type stateNote struct {
	State string `json:"state"` // an absolute path
}

// maxStateNote is more than the bytes of the longest note.
const maxStateNote = 16 << 10

func stateNoteFile(root string) string { return filepath.Join(root, ".packhorse", "state.json") }

// noteState writes into the root where its server keeps its state, or removes the note if that is the default place. What it
// creates belongs to the owner of the root, but a note of a state directory of root's to root.
func noteState(root, state string) error {
	file := stateNoteFile(root)
	if sameFile(state, filepath.Dir(file)) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	owner, err := ownerOf(root)
	if err != nil {
		return err
	}
	if err := owner.mkdirAll(filepath.Dir(file)); err != nil {
		return err
	}
	text, err := json.Marshal(stateNote{state})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "state.json.*")
	if err != nil {
		return err
	}
	if of, failed := ownerOf(state); failed == nil && of.uid == 0 {
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

// notedState reads the note in a root, and who wrote it; "" if there is none. The command may run as root, so it believes only a
// regular file of the root's owner, of its own user or of root.
func notedState(root string) (state string, by owner, err error) {
	file := stateNoteFile(root)
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return "", by, nil // one that this user may not read is of a server that this user may not administer
	}
	if err != nil {
		return "", by, fmt.Errorf("find the state directory: %w; name it with --state DIR", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", by, fmt.Errorf("find the state directory: %w", err)
	}
	ofRoot, err := ownerOf(root)
	if err != nil {
		return "", by, err
	}
	writer := info.Sys().(*syscall.Stat_t)
	by = owner{int(writer.Uid), int(writer.Gid)}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o022 != 0 || by.uid != ofRoot.uid && by.uid != 0 && by.uid != os.Geteuid() {
		return "", by, fmt.Errorf("%s: others than the owner of the root may have written it; remove it, or name the state directory with --state DIR", file)
	}
	var note stateNote
	if err := json.NewDecoder(io.LimitReader(f, maxStateNote)).Decode(&note); err != nil || !filepath.IsAbs(note.State) {
		return "", by, fmt.Errorf("%s does not name a state directory; remove it, or name the state directory with --state DIR", file)
	}
	if _, err := os.Stat(note.State); errors.Is(err, fs.ErrNotExist) {
		return "", by, fmt.Errorf("the last server on %s had its state in %s, which does not exist here; name it with --state DIR, or remove %s", root, note.State, file)
	}
	return note.State, by, nil
}

// sameFile reports whether two paths lead to the same file, or are the same if there is none.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	left, err := os.Stat(a)
	right, errOfB := os.Stat(b)
	return err == nil && errOfB == nil && os.SameFile(left, right)
}
