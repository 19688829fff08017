package ci

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/fleet"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// runner is one working machine of the fleet. One goroutine uses it.
type runner struct {
	scene    *scene
	machine  *fleet.Machine
	fresh    float64
	received atomic.Int64
	conn     *loadgen.Conn

	zip    *gzip.Writer
	zipped bytes.Buffer
	answer []byte

	data func([]byte) // receives the pack's bytes, if not nil
	// called after a fetch with a pack, before the machine's state changes
	packed  func(f *fleet.Fetch)
	rounds  int       // of the last job
	timed   bool      // record the time of the first byte of the pack
	began   time.Time // that time, of the last job
	fetched bool      // the last job received a pack
}

const (
	// compressFrom is the length from which git compresses a request.
	compressFrom = 1024
	// maxRounds limits the negotiation of one fetch.
	maxRounds = 100
)

// connected runs the work of one git process on its own connection, which is aborted when the context ends.
func (r *runner) connected(ctx context.Context, do func() error) error {
	c, err := r.scene.target.DialConn(ctx, &r.received)
	if err != nil {
		return err
	}
	r.conn = c
	defer c.Close()
	defer context.AfterFunc(ctx, c.Abort)()
	err = do()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// ask sends a request and calls read for its response.
func (r *runner) ask(ctx context.Context, request []byte, read func(b *loadgen.Body, h loadgen.Head) error) error {
	if r.scene.timeout > 0 {
		r.conn.SetDeadline(time.Now().Add(r.scene.timeout)) //nolint:errcheck // the write fails too
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := r.conn.Write(request); err != nil {
		return fmt.Errorf("sending the request: %w", err)
	}
	h, err := r.conn.ReadHead()
	if err != nil {
		return fmt.Errorf("reading the response's head: %w", err)
	}
	return read(r.conn.Body(h), h)
}

// small reads a response into memory. It is valid until the next one.
func (r *runner) small(b *loadgen.Body, h loadgen.Head) error {
	if h.Status != 200 {
		return gitload.StatusError(b, h)
	}
	r.answer = r.answer[:0]
	for {
		p, err := b.Next(loadgen.ConnBuffer)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if len(r.answer)+len(p) > loadgen.MaxSmall {
			return errors.New("response too long")
		}
		r.answer = append(r.answer, p...)
	}
}

// advertisement requests the server's capabilities and calls see, if not nil, for each line.
func (r *runner) advertisement(see func(line string)) error {
	err := r.ask(context.Background(), r.scene.target.Get("/info/refs?service=git-upload-pack"), r.small)
	if err != nil {
		return err
	}
	lines := pktline.NewReader(bytes.NewReader(r.answer))
	v2 := false
	for flushes := 0; flushes < 2 && !(v2 && flushes == 1); {
		typ, line, err := lines.Line()
		if err != nil {
			return fmt.Errorf("reading the server's capabilities: %w", err)
		}
		if typ == pktline.Flush {
			flushes++
			continue
		}
		if rest, ok := strings.CutPrefix(string(line), "ERR "); ok {
			return gitload.ServerError(loadgen.Clean([]byte(rest)))
		}
		if string(line) == "version 2" {
			v2, flushes = true, 0
		} else if see != nil && v2 {
			see(string(line))
		}
	}
	if !v2 {
		return errors.New("the server does not support protocol v2")
	}
	return nil
}

// job runs one job from the connection to the last byte.
func (r *runner) job(ctx context.Context, job fleet.Job) error {
	r.rounds, r.fetched, r.timed, r.began = 0, false, job.First, time.Time{}
	return r.connected(ctx, func() error {
		if err := r.advertisement(nil); err != nil {
			return err
		}
		refs, err := r.refs(ctx, job.Branch)
		if err != nil {
			return err
		}
		f, err := r.machine.Fetch(job, refs, &r.scene.caps)
		if f == nil || err != nil {
			return err
		}
		for r.rounds < maxRounds {
			r.rounds++
			if done, err := r.round(ctx, f); done || err != nil {
				return err
			}
		}
		return fmt.Errorf("no pack after %d rounds of negotiation", maxRounds)
	})
}

// refs requests the refs that the tool needs.
func (r *runner) refs(ctx context.Context, branch string) ([]fleet.Ref, error) {
	request := r.machine.LsRefs(&r.scene.caps, branch)
	if request == nil {
		return nil, nil
	}
	if err := r.ask(ctx, r.scene.target.Post("git-upload-pack", "", request), r.small); err != nil {
		return nil, err
	}
	var refs []fleet.Ref
	all, answer := r.machine.Needs(), r.answer
	for {
		n, err := pktline.ParseLength(answer[:min(4, len(answer))])
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading the refs: %w", err)
		case n == 0 && len(answer) == 4:
			return refs, nil
		case n < 4 || n > len(answer):
			return nil, errors.New("the ref list ends without a flush")
		}
		id, name, _ := bytes.Cut(bytes.TrimSuffix(answer[4:n], []byte("\n")), []byte(" "))
		name, _, _ = bytes.Cut(name, []byte(" "))
		if all || string(name) == branch {
			parsed, err := git.ParseObjectID(id)
			if err != nil && string(id) != "unborn" {
				return nil, fmt.Errorf("bad line %.80q in the ref list", loadgen.Clean(answer[4:n]))
			} else if err == nil {
				refs = append(refs, fleet.Ref{Name: string(name), ID: parsed})
			}
		}
		answer = answer[n:]
	}
}

// round sends one request of a fetch. done reports whether the response has the pack.
func (r *runner) round(ctx context.Context, f *fleet.Fetch) (done bool, err error) {
	request := f.Request()
	sent, encoding := request, ""
	if len(request) > compressFrom {
		if sent, err = r.compress(request); err != nil {
			return false, err
		}
		encoding = "gzip"
	}
	w := gitload.Walker{Section: f.Line, Data: r.data}
	if r.timed {
		w.Data = func(p []byte) {
			if r.began.IsZero() {
				r.began = time.Now()
			}
			if r.data != nil {
				r.data(p)
			}
		}
	}
	err = r.ask(ctx, r.scene.target.Post("git-upload-pack", encoding, sent), func(b *loadgen.Body, h loadgen.Head) error {
		return gitload.CheckFetch(b, h, nil, &w, func() {})
	})
	if err != nil || !w.HasPack {
		return false, err
	}
	r.packed(f)
	f.Finish()
	r.fetched = true
	return true, nil
}

// compress compresses a request as git does.
func (r *runner) compress(b []byte) ([]byte, error) {
	r.zipped.Reset()
	if r.zip == nil {
		r.zip = gzip.NewWriter(&r.zipped)
	} else {
		r.zip.Reset(&r.zipped)
	}
	_, err := r.zip.Write(b)
	if err := errors.Join(err, r.zip.Close()); err != nil {
		return nil, err
	}
	return r.zipped.Bytes(), nil
}

// verify runs one job of each kind in the profile and lets git check the result. It returns the number of kinds.
func (s *scene) verify(ctx context.Context, dir string) (kinds int, err error) {
	old, err := s.history.Behind(s.tip, 7)
	if err != nil {
		return 0, err
	}
	for _, p := range s.profile {
		states := []bool{false}
		if p.tool.Keeps() {
			states = []bool{false, true}
		}
		for _, stale := range states {
			kinds++
			at := git.ObjectID{}
			what := "on a new machine"
			if stale {
				at, what = old, "on a machine that is behind"
			}
			if err := s.verifyOne(ctx, filepath.Join(dir, fmt.Sprintf("verify-%d.git", kinds)), p.tool, at); err != nil {
				return kinds, fmt.Errorf("checking a job of %v %s: %w", p.tool, what, err)
			}
		}
	}
	return kinds, nil
}

// verifyOne lets git index the pack of one job in a repository of the machine's state, and check its connectivity.
func (s *scene) verifyOne(ctx context.Context, repo string, tool fleet.Tool, at git.ObjectID) error {
	defer os.RemoveAll(repo)
	if _, err := gitload.RunGit(ctx, filepath.Dir(repo), nil, "init", "-q", "--bare", "--object-format="+
		s.caps.Format.String(), repo); err != nil {
		return err
	}
	r := &runner{scene: s, machine: fleet.NewMachine(s.history, tool)}
	if !at.IsZero() {
		if err := r.machine.Leave(fleet.Job{Pipeline: "refs/pipelines/1", Commit: at, Branch: s.branch}); err != nil {
			return err
		}
		if err := s.leave(ctx, repo, tool, at); err != nil {
			return err
		}
	}
	pack, err := os.Create(repo + ".pack")
	if err != nil {
		return err
	}
	defer os.Remove(pack.Name())
	defer pack.Close()
	var wants, shallow []string
	var failed error
	r.data = func(p []byte) {
		if _, err := pack.Write(p); err != nil {
			failed = err
		}
	}
	r.packed = func(f *fleet.Fetch) {
		for _, id := range f.Wants() {
			wants = append(wants, id.String())
		}
		for _, id := range f.Shallow() {
			shallow = append(shallow, id.String())
		}
	}
	err = r.job(ctx, fleet.Job{Pipeline: "refs/pipelines/2", Commit: s.tip, Branch: s.branch})
	if err = errors.Join(err, failed); err != nil || !r.fetched {
		return err // without a pack the repository is too short for a machine that is behind
	}
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := gitload.VerifyPack(ctx, repo, pack, "", wants, shallow); err != nil {
		return fmt.Errorf("git does not accept the pack: %w", err)
	}
	return nil
}

// leave lets git make the repository after a job of the tool.
func (s *scene) leave(ctx context.Context, repo string, tool fleet.Tool, at git.ObjectID) error {
	args := []string{"fetch", "-q", "--no-tags", s.target.String(), at.String() + ":refs/remotes/origin/" +
		filepath.Base(s.branch)}
	if tool != fleet.Jenkins {
		args = append(args, "--depth=20")
	}
	_, err := gitload.RunGitWith(ctx, gitload.GitAccess(s.target), repo, nil, args...)
	return err
}
