package places

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// movePatience is how long Rename and Delete wait for running pushes.
const movePatience = 10 * time.Second

// Rename implements Places. It moves the directory in one step, when no change of refs runs.
func (d *Directories) Rename(ctx context.Context, from, to git.RepoPath) error {
	p, err := d.findWhole(ctx, from, "rename")
	if err != nil {
		return err
	}
	if short := strings.TrimSuffix(p.Path().String(), ".git"); short == strings.TrimSuffix(to.String(), ".git") {
		return nil
	}
	if err := d.checkVacant(ctx, to); err != nil {
		return err
	}
	if err := d.checkBorrowers(ctx, p.dir); err != nil {
		return err
	}
	if err := d.searching.Acquire(ctx, 1); err != nil { // a search for borrowers must not miss this one
		return err
	}
	defer d.searching.Release(1)
	release, err := d.beginMoving(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	if p, err = d.findWhole(ctx, from, "rename"); err != nil {
		return err
	}
	if err := d.checkVacant(ctx, to); err != nil {
		return err
	}
	return d.renameTo(p, to)
}

// beginMoving claims a repository that is about to get another place. It waits for running pushes, whose programs would
// make its directories again, and keeps others from beginning.
func (d *Directories) beginMoving(ctx context.Context, p *dirPlace) (release func(), err error) {
	unclaim, err := d.Claims.Claim(p.repo.Common)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, movePatience)
	defer cancel()
	open, err := d.Claims.Gates.Close(limited, p.repo.Common)
	if err != nil {
		unclaim()
		return nil, cmp.Or(ctx.Err(), fault.Retry(fault.Unavailable, fault.RetryLater,
			"pushes to the repository are running; try again"))
	}
	if err := d.placing.Acquire(ctx, 1); err != nil {
		open()
		unclaim()
		return nil, err
	}
	return func() {
		d.placing.Release(1)
		open()
		unclaim()
	}, nil
}

// renameTo moves a repository to a path that is vacant.
func (d *Directories) renameTo(p *dirPlace, to git.RepoPath) error {
	parent, err := d.makeParents(filepath.Dir(to.String()))
	if err != nil {
		return err
	}
	target := filepath.Join(parent, filepath.Base(to.String()))
	err = d.move(p.dir, target)
	switch {
	case errors.Is(err, syscall.EXDEV):
		return fault.Wrap(fault.Denied,
			"the new path is on another file system: fork the repository there, and remove this one", err)
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(fault.Exists, "another file has the path "+to.String(), err)
	case err != nil && !IsChanged(err):
		return WriteError(err)
	}
	if at, ok := expiry(target, d.Repo); ok {
		d.expiries.add(to, at)
	}
	d.Deleted(p.Key())
	return err
}

// movesKind is the directory, in the private directory of the root, with the moves that are being made.
const movesKind = "moves"

// move is a move of a repository that borrows objects by paths relative to its own. The file of alternates has absolute
// paths meanwhile, which are right at both places. After a crash the next node makes them relative again.
type move struct{ From, To, Old, Absolute, New string } // directories, and contents of alternates

// move moves a repository. All is on disk when it returns.
func (d *Directories) move(from, to string) error {
	m, err := newMove(from, to)
	if err != nil {
		return err
	}
	finish := func() error { return nil }
	if m.Old != m.New {
		if finish, err = d.beginMove(m); err != nil {
			return errors.Join(err, finish())
		}
	}
	if err = d.failPoint("rename"); err == nil {
		err = renameNew(from, to)
	}
	if err != nil {
		return errors.Join(err, finish())
	}
	if err = d.failPoint("sync"); err == nil {
		err = errors.Join(d.Sync(filepath.Dir(to)), d.Sync(filepath.Dir(from)), finish())
	}
	if err != nil {
		return &unsyncedError{fault.Wrap(fault.Unavailable,
			"the repository was renamed, but can have its former path after a power failure", err)}
	}
	return nil
}

// newMove determines the alternates of a repository at another place.
func newMove(from, to string) (m move, err error) {
	m = move{From: from, To: to}
	text, err := os.ReadFile(filepath.Join(from, "objects/info/alternates"))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	entries, entriesErr := pack.Alternates(from + "/objects")
	if err = errors.Join(err, entriesErr); err != nil {
		return m, err
	}
	m.Old, m.Absolute, m.New = string(text), string(text), string(text)
	var lines, absolute []string
	for line := range strings.SplitSeq(strings.TrimSuffix(m.Old, "\n"), "\n") {
		if line != "" && line[0] != '#' && !filepath.IsAbs(line) {
			real, err := filepath.EvalSymlinks(from + "/objects/" + line)
			absolute = append(absolute, real)
			if err == nil {
				line, err = filepath.Rel(to+"/objects", real)
			}
			if err != nil {
				return m, fault.Wrap(fault.Denied, "the repository borrows objects by a path that cannot be kept "+
					"(objects/info/alternates): repack it first (git repack -a -d, then remove the file)", err)
			}
		} else {
			absolute = append(absolute, line)
		}
		lines = append(lines, line)
	}
	if len(entries) > 0 {
		m.New, m.Absolute = strings.Join(lines, "\n")+"\n", strings.Join(absolute, "\n")+"\n"
	}
	return m, nil
}

// beginMove notes a move, and makes the alternates right at both places. finish ends that, wherever the repository is.
func (d *Directories) beginMove(m move) (finish func() error, err error) {
	dir := filepath.Join(d.root, repo.PrivateDir, movesKind)
	note := filepath.Join(dir, rand.Text())
	text, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = errors.Join(disk.ReplaceFile(note, text), d.Sync(filepath.Dir(dir)))
	}
	if err == nil {
		err = d.failPoint("note")
	}
	if err == nil {
		err = disk.ReplaceFile(filepath.Join(m.From, "objects/info/alternates"), []byte(m.Absolute))
	}
	return func() error {
		if err := d.failPoint("finish"); err != nil {
			return err
		}
		return errors.Join(m.finish(), os.Remove(note))
	}, err
}

// finish makes the alternates right at the place where the repository is.
func (m *move) finish() error {
	for dir, text := range map[string]string{m.From: m.Old, m.To: m.New} {
		file := filepath.Join(dir, "objects/info/alternates")
		if now, err := os.ReadFile(file); err == nil && string(now) == m.Absolute {
			return disk.ReplaceFile(file, []byte(text))
		}
	}
	return nil
}

// finishMoves finishes the moves of an earlier node.
func (d *Directories) finishMoves() {
	notes, _ := filepath.Glob(filepath.Join(d.root, repo.PrivateDir, movesKind, "*"))
	for _, note := range notes {
		var m move
		text, err := os.ReadFile(note)
		if err == nil && json.Unmarshal(text, &m) == nil { // otherwise the move had not begun
			err = m.finish()
		}
		if err == nil {
			err = os.Remove(note)
		}
		if err != nil {
			d.Log.Warn("cannot finish the renaming of a repository", "dir", m.From, "to", m.To, "error", err)
		}
	}
}
