package pushrecovery

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
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

const (
	// completeTimeout is the maximum time to complete one push.
	completeTimeout = time.Minute
	// gracePeriod is the time that Git gets after completeTimeout to exit before it is killed.
	gracePeriod = 10 * time.Second
)

// complete sets the remaining refs of an atomic push whose Git was killed between two refs, if all hooks had accepted
// the push. The journal records that. It also follows from lock files of the remaining refs, because Git creates them
// only after the hooks. The push is not undone, because clients may have seen it. After an error the push stays in the
// journal, for the next server.
func (r *Recovery) complete(p *Push) error {
	if !p.IsAtomic() || r.Runner == nil {
		return nil
	}
	if _, err := os.Stat(p.GitDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, completeTimeout)
	defer cancel()
	commands, err := r.remainingUpdates(ctx, p)
	if err == nil && commands != "" {
		_, err = r.runGit(ctx, p, "update-ref", commands, "--stdin")
		if err == nil {
			r.Removed.WithLabelValues("push").Inc()
			r.Log.Info("completed an interrupted atomic push", "dir", p.CommonDir)
		}
	}
	if err == nil {
		err = p.MarkSettled()
	}
	if err != nil {
		r.Log.Warn("cannot complete an interrupted atomic push", "dir", p.CommonDir, "error", err)
	}
	return err
}

// remainingUpdates returns the commands for git update-ref that complete a push. It returns "" if Git changed no ref or
// all refs, or if it is uncertain that Git would have changed the remaining ones.
func (r *Recovery) remainingUpdates(ctx context.Context, p *Push) (string, error) {
	names := slices.Sorted(maps.Keys(p.Old))
	current, err := r.currentValues(ctx, p, names)
	if err != nil {
		return "", err
	}
	var commands strings.Builder
	begun := false
	for i, name := range names {
		oldID, newID := p.Old[name], p.Refs[name]
		lock, isLocked := p.lasting[filepath.Join(p.CommonDir, string(name)+".lock")]
		mayChange := p.Agreed || isLocked && (newID.IsZero() || lock.Size() == int64(newID.Format().HexSize()+1))
		switch {
		case equal(oldID, newID):
		case equal(current[i], newID):
			// A deleted ref alone proves nothing, because another push may have deleted it.
			begun = begun || !newID.IsZero() || isLocked || p.Agreed
		case !equal(current[i], oldID) || !mayChange:
			return "", nil
		case newID.IsZero():
			fmt.Fprintf(&commands, "delete %s %s\n", name, oldID)
		case oldID.IsZero():
			fmt.Fprintf(&commands, "create %s %s\n", name, newID)
		default:
			fmt.Fprintf(&commands, "update %s %s %s\n", name, newID, oldID)
		}
	}
	if !begun {
		return "", nil
	}
	return commands.String(), nil
}

// equal reports whether two values of a ref are the same. A zero ID can be of any object format.
func equal(a, b git.ObjectID) bool { return a == b || a.IsZero() && b.IsZero() }

// currentValues returns the values of refs. The zero ID means that a ref does not exist.
func (r *Recovery) currentValues(ctx context.Context, p *Push, names []git.RefName) ([]git.ObjectID, error) {
	var input strings.Builder
	for _, name := range names {
		input.WriteString(string(name) + "\n")
	}
	output, err := r.runGit(ctx, p, "cat-file", input.String(), "--batch-check=%(objectname)")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	if len(lines) != len(names) {
		return nil, fmt.Errorf("git cat-file: got %d lines for %d refs", len(lines), len(names))
	}
	values := make([]git.ObjectID, len(names))
	for i, line := range lines {
		if line == string(names[i])+" missing" {
			continue
		}
		if values[i], err = git.ParseObjectID(line); err != nil {
			return nil, fmt.Errorf("git cat-file: %w", err)
		}
	}
	return values, nil
}

// runGit runs a Git command in the repository of a push and returns its output.
func (r *Recovery) runGit(ctx context.Context, p *Push, subcommand, input string, args ...string) (string, error) {
	args = append([]string{"-c", "safe.directory=*", "-c", "core.fsync=reference", "--git-dir=" + p.GitDir, subcommand},
		args...)
	var config [][2]string
	for _, key := range p.DisabledConfig {
		config = append(config, [2]string{key, "false"})
	}
	var output []byte
	_, err := r.Runner.Read(ctx, process.Command{
		Class: r.Class, Subcommand: subcommand, Args: args, Env: p.Committer, Config: config,
		Stdin: strings.NewReader(input), Grace: gracePeriod, Repository: p.CommonDir,
	}, func(out io.Reader) (err error) {
		output, err = io.ReadAll(out)
		return err
	})
	return string(output), err
}
