package receivepack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// completeLimit bounds how long completing a push may take.
const completeLimit = time.Minute

// atomic notes that all of a push's refs change or none does, if each was what the client says when git was started: one that is new later was
// set by this push then.
func (n *note) atomic(updates []Update, before *refs.Snapshot) error {
	olds := make(map[string]string, len(updates))
	for _, u := range updates {
		was, err := value(before, u.Ref)
		if err != nil || was != u.Old && !(was.IsZero() && u.Old.IsZero()) {
			return err
		}
		olds[string(u.Ref)] = hexOf(u.Old)
	}
	n.Olds = olds
	return nil
}

// complete does the rest of an atomic push whose git was killed while it set one ref after the other. That every hook had agreed the journal says, or
// the locks of what was left to do: git takes them then, and removes them if it was asked to end. To take back what is done would be wrong:
// somebody may have seen it. An error leaves the push in the journal, for the next start.
func (w *sweeper) complete(e *entry) error {
	if len(e.note.Olds) == 0 || w.runner == nil {
		return nil
	}
	if _, err := os.Stat(e.note.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.ctx, completeLimit)
	defer cancel()
	rest, err := w.undone(ctx, e)
	if err == nil && rest != "" {
		_, err = w.git(ctx, e.note, "update-ref", rest, "--stdin")
		if err == nil {
			w.metrics.swept.WithLabelValues("push").Inc()
			w.log.Info("completed an atomic push whose git was killed", "dir", e.note.Common)
		}
	}
	if err != nil {
		w.log.Warn("an atomic push may have been done by half", "dir", e.note.Common, "error", err)
	}
	return err
}

// undone is what git update-ref has to be told to complete a push; "" if none of it was done, or all, or it is not certain that git was to do
// the rest.
func (w *sweeper) undone(ctx context.Context, e *entry) (string, error) {
	n := e.note
	names := slices.Sorted(maps.Keys(n.Olds))
	out, err := w.git(ctx, n, "cat-file", strings.Join(names, "\n")+"\n", "--batch-check=%(objectname)")
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if err != nil || len(lines) != len(names) {
		return "", err
	}
	var rest strings.Builder
	changed := false
	for i, name := range names {
		is, old, to := lines[i], n.Olds[name], n.Refs[name]
		if is == name+" missing" {
			is = ""
		}
		lock, locked := e.seen[filepath.Join(n.Common, name+".lock")]
		switch {
		case old == to:
		case is == to:
			changed = changed || to != "" || locked || e.agreed // else somebody else may have deleted it
		case is != old, !locked && !e.agreed, locked && !e.agreed && to != "" && lock.Size() != int64(len(to)+1):
			return "", nil
		case to == "":
			fmt.Fprintf(&rest, "delete %s %s\n", name, old)
		case old == "":
			fmt.Fprintf(&rest, "create %s %s\n", name, to)
		default:
			fmt.Fprintf(&rest, "update %s %s %s\n", name, to, old)
		}
	}
	if !changed {
		return "", nil
	}
	return rest.String(), nil
}

// git runs a command of git in a repository.
func (w *sweeper) git(ctx context.Context, n note, subcommand, input string, args ...string) (string, error) {
	args = append([]string{"-c", "safe.directory=*", "-c", "core.fsync=reference", "--git-dir=" + n.Dir, subcommand}, args...)
	var off [][2]string
	for _, quoted := range n.Off {
		if key, err := strconv.Unquote(quoted); err == nil {
			off = append(off, [2]string{key, "false"})
		}
	}
	child, err := w.runner.Start(ctx, process.Command{
		Class: ClassReceive, Subcommand: subcommand, Args: args, Env: n.Identity, Config: off, Stdin: strings.NewReader(input), Grace: grace,
		Repository: n.Common,
	})
	if err != nil {
		return "", err
	}
	out, err := io.ReadAll(child.Stdout())
	if err != nil {
		child.Kill()
	}
	_, exit := child.Wait()
	if exit != nil {
		err = exit
	}
	return string(out), err
}
