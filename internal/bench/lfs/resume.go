package lfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// resume uploads an object with git-lfs through a proxy that cuts its connection.
func (w *lfs) resume(ctx context.Context) ([]world.Figure, error) {
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	token, err := own.Token(ctx)
	if err != nil {
		return nil, err
	}
	var values []float64
	var took time.Duration
	for i := range w.rounds {
		local := filepath.Join(w.Dir, fmt.Sprint("local", i))
		if _, err := gitload.RunGit(ctx, w.Dir, nil, "init", "-q", local); err != nil {
			return nil, err
		}
		o, err := addObject(filepath.Join(local, ".git"), int64(w.upload)<<20, 'r', i)
		if err != nil {
			return nil, err
		}
		l, err := w.Link(own.URL[len("http://"):])
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		ended := make(chan int)
		pushing, cancel := context.WithCancel(ctx)
		go func() { ended <- cutOften(pushing, l, o.size, w.cuts) }()
		err = w.push(ctx, local, "http://"+l.Addr(), token, o)
		took = time.Since(begun)
		cancel()
		if cuts := <-ended; err == nil && cuts != w.cuts {
			err = fmt.Errorf("the upload was cut %d times, want %d", cuts, w.cuts)
		}
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(o.path(w.repository()))
		if err != nil {
			return nil, err
		}
		if info.Size() != o.size {
			return nil, fmt.Errorf("the server's object has %d bytes, want %d", info.Size(), o.size)
		}
		values = append(values, float64(l.Sent()-o.size)/float64(o.size))
		if err := errors.Join(os.RemoveAll(local), os.Remove(o.path(w.repository()))); err != nil {
			return nil, err
		}
	}
	again := loadgen.Median(values)
	return []world.Figure{{What: fmt.Sprintf("upload of %d MiB, cut %d times: bytes sent again", w.upload, w.cuts),
		Goal: "<= 1 %", Value: again * 100, Got: fmt.Sprintf("%.2f %%, %v", again*100, took.Round(10*time.Millisecond)),
		Reached: again <= 0.01}}, nil
}

// push uploads an object with git-lfs, which resumes an upload with tus.
func (w *lfs) push(ctx context.Context, local, url, token string, o object) error {
	settings := [][2]string{{"remote.origin.URL", url + "/app"}, {"lfs.tustransfers", "true"},
		{"lfs.transfer.maxretries", fmt.Sprint(w.cuts + 5)}, {"lfs.transfer.maxretrydelay", "1"},
		{"lfs.locksverify", "false"}, {"http.extraheader", "Authorization: Bearer " + token}}
	for _, s := range settings {
		if _, err := gitload.RunGit(ctx, local, nil, "config", s[0], s[1]); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, w.gitLFS, "push", "--object-id", "origin", o.oid)
	cmd.Dir = local
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git-lfs push: %w: %s", err, loadgen.Clean(out[max(0, len(out)-1000):]))
	}
	return nil
}

// cutOften cuts a connection of the link each time another part of the object has arrived. It returns the number of
// cuts at the end of ctx.
func cutOften(ctx context.Context, l *world.Link, size int64, cuts int) int {
	for n := range cuts {
		l.CutAt(size / int64(cuts+1) * int64(n+1))
		for !l.Cut() {
			if !loadgen.Sleep(ctx, time.Millisecond) {
				return n
			}
		}
	}
	return cuts
}
