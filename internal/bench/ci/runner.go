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
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
)

// runner is one working machine of the fleet. One goroutine uses it.
type runner struct {
	scene    *scene
	machine  *Machine
	fresh    float64
	received atomic.Int64
	conn     *loadgen.Conn // of the current job

	zip    *gzip.Writer
	zipped bytes.Buffer

	data func([]byte) // receives the pack's bytes, if not nil
	// called after a fetch with a pack, before the machine's state changes
	packed  func(f *Fetch)
	began   time.Time // when the first byte of the pack of the last job arrived
	fetched bool      // the last job received a pack
}

const (
	// compressFrom is the length from which git compresses a request.
	compressFrom = 1024
	// maxRounds limits the negotiation of one fetch.
	maxRounds = 100
)

// job runs one job on its own connection, from the connection to the last byte.
func (r *runner) job(ctx context.Context, job Job) (err error) {
	r.fetched, r.began = false, time.Time{}
	if r.conn, err = r.scene.target.DialConn(ctx, &r.received, r.scene.timeout); err != nil {
		return err
	}
	defer r.conn.Close()
	err = r.git(job)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// git does the work of git.
func (r *runner) git(job Job) error {
	answer, err := r.ask(r.scene.target.Discover())
	if err == nil {
		_, err = gitload.Advertisement(answer)
	}
	if err != nil {
		return err
	}
	var refs []Ref
	if request := r.machine.LsRefs(&r.scene.caps, job.Branch); request != nil {
		if answer, err = r.ask(r.scene.target.Post("git-upload-pack", "", request)); err != nil {
			return err
		}
		list, err := gitload.ParseRefs(answer)
		if err != nil {
			return err
		}
		for _, ref := range list {
			if !ref.Id.IsZero() { // not unborn
				refs = append(refs, Ref{Name: ref.Name, ID: ref.Id})
			}
		}
	}
	f, err := r.machine.Fetch(job, refs, &r.scene.caps)
	if f == nil || err != nil {
		return err
	}
	for range maxRounds {
		if done, err := r.round(f); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("no pack after %d rounds of negotiation", maxRounds)
}

// ask sends a request and returns the body of its response. It is valid until the next one.
func (r *runner) ask(request []byte) ([]byte, error) {
	b, err := r.conn.Exchange(request)
	if err != nil {
		return nil, err
	}
	return b.All()
}

// round sends one request of a fetch. done reports whether the response has the pack.
func (r *runner) round(f *Fetch) (done bool, err error) {
	request, encoding := f.Request(), ""
	if len(request) > compressFrom {
		if request, err = r.compress(request); err != nil {
			return false, err
		}
		encoding = "gzip"
	}
	b, err := r.conn.Exchange(r.scene.target.Post("git-upload-pack", encoding, request))
	if err != nil {
		return false, err
	}
	w := gitload.Walker{Section: f.Line, Data: r.data}
	if err := gitload.CheckFetch(b, nil, &w); err != nil || !w.HasPack {
		return false, err
	}
	r.packed(f)
	f.Finish()
	r.fetched, r.began = true, w.Began
	return true, nil
}

// compress compresses a request as git does.
func (r *runner) compress(b []byte) ([]byte, error) {
	if r.zip == nil {
		r.zip = gzip.NewWriter(nil)
	}
	r.zipped.Reset()
	r.zip.Reset(&r.zipped)
	_, err := r.zip.Write(b)
	err = errors.Join(err, r.zip.Close())
	return r.zipped.Bytes(), err
}

// verify runs one job of each kind in the profile and lets git check the result. It returns the number of kinds.
func (s *scene) verify(ctx context.Context, dir string) (kinds int, err error) {
	old := world.Must(s.history.Behind(s.tip, 7))
	for _, p := range s.profile {
		states := []git.ObjectID{{}} // of a new machine
		if p.tool.Keeps() {
			states = append(states, old)
		}
		for _, at := range states {
			kinds++
			if err := s.verifyOne(ctx, filepath.Join(dir, fmt.Sprintf("verify-%d.git", kinds)), p.tool, at); err != nil {
				return kinds, fmt.Errorf("checking a job of %v: %w", p.tool, err)
			}
		}
	}
	return kinds, nil
}

// verifyOne lets git index the pack of one job in a repository of the machine's state, and check its connectivity.
func (s *scene) verifyOne(ctx context.Context, repo string, tool Tool, at git.ObjectID) (err error) {
	defer world.Rescue(&err)
	defer os.RemoveAll(repo)
	world.Must(gitload.RunGit(ctx, filepath.Dir(repo), nil, "init", "-q", "--bare",
		"--object-format="+s.caps.Format.String(), repo))
	r := &runner{scene: s, machine: NewMachine(s.history, tool)}
	if !at.IsZero() { // a repository after a job of the tool
		world.Check(r.machine.Leave(Job{Pipeline: "refs/pipelines/1", Commit: at, Branch: s.branch}))
		args := []string{"fetch", "-q", "--no-tags", s.target.String(), at.String() + ":refs/remotes/origin/" +
			filepath.Base(s.branch)}
		if tool != Jenkins {
			args = append(args, "--depth=20")
		}
		world.Must(gitload.RunGitWith(ctx, gitload.GitAccess(s.target), repo, nil, args...))
	}
	pack := world.Must(os.Create(repo + ".pack"))
	defer os.Remove(pack.Name())
	defer pack.Close()
	var wants, shallow []string
	var failed error
	r.data = func(p []byte) {
		if _, err := pack.Write(p); err != nil {
			failed = err
		}
	}
	r.packed = func(f *Fetch) {
		for _, id := range f.Wants() {
			wants = append(wants, id.String())
		}
		for _, id := range f.Shallow() {
			shallow = append(shallow, id.String())
		}
	}
	err = r.job(ctx, Job{Pipeline: "refs/pipelines/2", Commit: s.tip, Branch: s.branch})
	if world.Check(errors.Join(err, failed)); !r.fetched {
		return nil // without a pack the repository is too short for a machine that is behind
	}
	world.Must(pack.Seek(0, io.SeekStart))
	if err := gitload.VerifyPack(ctx, repo, pack, "", wants, shallow); err != nil {
		return fmt.Errorf("git does not accept the pack: %w", err)
	}
	return nil
}
