package cold

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
)

// clientState is a client with its request.
type clientState struct {
	shape shape
	repo  string // path of the served repository
	refs  *refs
	haves []string
	base  string // the commit whose history the client has, if it has haves
}

// request is the body of the client's fetch.
func (c *clientState) request() []byte {
	var haves []git.ObjectID
	for _, have := range c.haves {
		if id, err := git.ParseObjectID(have); err == nil {
			haves = append(haves, id)
		}
	}
	return c.shape.request(c.refs, haves)
}

// verifyOnce fetches the measured pack again, which is now in the cache, and lets git check it unless it has checked
// the same pack before.
func (r *run) verifyOnce(ctx context.Context, t *loadgen.Target, c *clientState) (err error) {
	if !r.check {
		return nil
	}
	dir := filepath.Join(r.dir, "check")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pack, err := os.Create(filepath.Join(dir, "pack"))
	if err != nil {
		return err
	}
	defer pack.Close()
	hash := sha256.New()
	var boundary []string
	var failed error
	_, err = gitload.FetchOnce(ctx, t, c.request(), r.timeout, func(line []byte) error {
		if id, ok := strings.CutPrefix(string(line), "shallow "); ok {
			boundary = append(boundary, id)
		}
		return nil
	}, func(p []byte) {
		hash.Write(p)
		if _, err := pack.Write(p); err != nil && failed == nil {
			failed = err
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("fetch the pack again: %w", err)
	}
	key := fmt.Sprintf("%x", hash.Sum(nil))
	if r.seen[key] {
		return nil
	}
	r.seen[key] = true
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := c.verify(ctx, filepath.Join(dir, "client.git"), pack, boundary); err != nil {
		return fmt.Errorf("git does not accept the pack of the server: %w", err)
	}
	return nil
}

// verify lets git index a pack in a repository of the client's state, and check that it has all objects then.
func (c *clientState) verify(ctx context.Context, repo string, pack io.Reader, boundary []string) error {
	run := func(stdin io.Reader, args ...string) error {
		_, err := gitload.RunGit(ctx, repo, stdin, args...)
		return err
	}
	if _, err := gitload.RunGit(ctx, filepath.Dir(repo), nil, "init", "-q", "--bare", "--object-format="+
		c.refs.format.String(), repo); err != nil {
		return err
	}
	if c.base != "" {
		if err := run(nil, "fetch", "-q", "--no-tags", "file://"+c.repo, c.base+":refs/heads/have"); err != nil {
			return err
		}
	}
	if len(boundary) > 0 {
		text := strings.Join(boundary, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(repo, "shallow"), []byte(text), 0o666); err != nil {
			return err
		}
	}
	index := []string{"index-pack", "--stdin", "--fix-thin"}
	walk := []string{"rev-list", "--objects", "--quiet", "--stdin"}
	if c.shape.filter == "" {
		index = append(index, "--strict")
	} else { // --strict would look for the filtered objects
		walk = append(walk, "--filter="+c.shape.filter)
	}
	if err := run(pack, index...); err != nil {
		return err
	}
	var wants, created strings.Builder
	for i, id := range c.shape.wants(c.refs) {
		fmt.Fprintln(&wants, id)
		fmt.Fprintf(&created, "create refs/want/%d %v\n", i, id)
	}
	if err := run(strings.NewReader(wants.String()), walk...); err != nil {
		return fmt.Errorf("the client's repository is incomplete: %w", err)
	}
	if !c.shape.all || c.shape.filter != "" {
		return nil
	}
	if err := run(strings.NewReader(created.String()), "update-ref", "--stdin"); err != nil {
		return err
	}
	return run(nil, "fsck", "--connectivity-only")
}
