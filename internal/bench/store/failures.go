package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

const (
	// patience is the limit of a wait for a server.
	patience = 30 * time.Second
	// pushGrace is more than the time for which a node accepts a push of a client that has seen refs.
	pushGrace = 6 * time.Second
)

// outage fetches and pushes while the storage does not answer.
func (w *stores) outage(ctx context.Context) ([]world.Figure, error) {
	node, err := w.node(ctx, "node")
	if err != nil {
		return nil, err
	}
	c := gitload.NewClient(node.URL, node.token)
	defer c.Close()
	p := node.pusher("app", "topic", w.base)
	if _, _, err := p.push(ctx); err != nil { // copies the repository
		return nil, err
	}
	var load sync.WaitGroup
	fetches, pushes, failed, accepted := 0, 0, &loadgen.Failures{}, &loadgen.Failures{}
	w.link.Down()
	begun := time.Now()
	continues := func(pause time.Duration) bool {
		return loadgen.Sleep(ctx, pause) && time.Since(begun) < w.options.outage
	}
	load.Go(func() {
		for continues(time.Second / 20) {
			fetches++
			load.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				if _, err := c.Fetch(ctx, "app", w.base.id, 1); err != nil {
					failed.Add(err)
				}
			})
		}
	})
	load.Go(func() {
		for continues(100 * time.Millisecond) {
			pushes++
			if err := node.refuses(ctx, p, time.Since(begun) > pushGrace); err != nil {
				accepted.Add(err)
			}
		}
	})
	loadgen.Sleep(ctx, w.options.outage/2)
	w.link.Silence(true)
	err = w.link.Up()
	load.Wait()
	w.link.Silence(false)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	ended := time.Now()
	for _, _, err = p.push(ctx); err != nil; _, _, err = p.push(ctx) {
		if !loadgen.Sleep(ctx, 50*time.Millisecond) || time.Since(ended) > patience {
			return nil, fmt.Errorf("no push %v after the end of the outage: %w", patience, err)
		}
	}
	return []world.Figure{
		{What: "failed fetches of known commits", Goal: "0", Value: float64(failed.N), Reached: failed.N == 0,
			Got: fmt.Sprintf("%d of %d in %v %s", failed.N, fetches, w.options.outage, strings.Join(failed.First, "; "))},
		{What: "pushes not refused before a byte of the pack", Goal: "0", Value: float64(accepted.N),
			Got: fmt.Sprintf("%d of %d, accepted again after %.1f s %s", accepted.N, pushes, time.Since(ended).Seconds(),
				strings.Join(accepted.First, "; ")), Reached: accepted.N == 0},
	}, nil
}

// refuses reports an error unless the server refuses a push with status 503 when the client asks for refs. With
// isDirect it also has to refuse a client that does not ask, and waits for permission to send its pack.
func (s *server) refuses(ctx context.Context, p *pusher, isDirect bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, _, err := p.client.Get(ctx, "/"+p.repo+"/info/refs?service=git-receive-pack")
	if err == nil {
		body.Close()
		return errors.New("the refs were sent")
	}
	if e, ok := errors.AsType[*loadgen.HTTPError](err); !ok || e.Status != http.StatusServiceUnavailable {
		return err
	}
	if !isDirect {
		return nil
	}
	_, data := p.request()
	sent := &countReader{r: bytes.NewReader(data)}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/"+p.repo+"/git-receive-pack", sent)
	if err != nil {
		return err
	}
	request.ContentLength = int64(len(data))
	request.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Expect", "100-continue")
	transport := &http.Transport{ExpectContinueTimeout: patience, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if n := sent.n.Load(); n > 0 || response.StatusCode != http.StatusServiceUnavailable {
		return fmt.Errorf("%s after %d bytes of the push", response.Status, n)
	}
	return nil
}

// countReader counts the bytes that are read.
type countReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// killRun is the load on a gateway while one of its nodes is killed.
type killRun struct {
	client *gitload.Client
	base   string // the commit that is fetched
	stop   chan struct{}
	killed atomic.Pointer[time.Time]

	failed                     loadgen.Failures // fetches before their first byte
	fetches, cut, failedPushes atomic.Int64
}

// killLoad is the load of one repository.
type killLoad struct {
	*pusher
	accepted time.Duration // from the kill to the end of the first successful push that began after it; 0: none
}

// goesOn waits a moment, and reports whether the load continues.
func (r *killRun) goesOn(ctx context.Context) bool {
	select {
	case <-r.stop:
		return false
	default:
		return loadgen.Sleep(ctx, 20*time.Millisecond)
	}
}

func (r *killRun) fetch(ctx context.Context, l *killLoad) {
	for r.goesOn(ctx) {
		r.fetches.Add(1)
		if n, err := r.client.Fetch(ctx, l.repo, r.base, 1); n > 0 && err != nil {
			r.cut.Add(1) // only the client can repeat it
		} else if err != nil {
			r.failed.Add(err)
		}
	}
}

func (r *killRun) push(ctx context.Context, l *killLoad) {
	for r.goesOn(ctx) {
		at := r.killed.Load()
		if _, _, err := l.push(ctx); err != nil {
			r.failedPushes.Add(1)
			_ = l.reload(ctx) // if it fails, so does the next push
		} else if at != nil && l.accepted == 0 {
			l.accepted = time.Since(*at)
		}
	}
}

// timeAfterKill is how long the load goes on after the kill.
const timeAfterKill = 8 * time.Second

// kill kills one of two nodes behind a gateway.
func (w *stores) kill(ctx context.Context) ([]world.Figure, error) {
	gateway, nodes, err := w.cluster(ctx)
	if err != nil {
		return nil, err
	}
	r := &killRun{client: gitload.NewClient(gateway.URL, ""), base: w.base.id, stop: make(chan struct{})}
	defer r.client.Close()
	loads := make([]*killLoad, min(8, w.repositories))
	for i := range loads {
		loads[i] = &killLoad{pusher: gateway.pusher(fmt.Sprint("r", i), "topic", w.base)}
		if _, _, err := loads[i].push(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeAfterKill+patience)
	defer cancel()
	var running sync.WaitGroup
	for _, l := range loads {
		running.Go(func() { r.fetch(ctx, l) })
		running.Go(func() { r.push(ctx, l) })
	}
	loadgen.Sleep(ctx, 2*time.Second)
	nodes[0].MayFail = true // it may end by a signal
	err = syscall.Kill(nodes[0].Pid, syscall.SIGKILL)
	r.killed.Store(new(time.Now()))
	loadgen.Sleep(ctx, timeAfterKill)
	close(r.stop)
	running.Wait()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	return r.figures(ctx, loads)
}

// figures also checks that the repositories have the last pushes.
func (r *killRun) figures(ctx context.Context, loads []*killLoad) ([]world.Figure, error) {
	var longest time.Duration
	lost, isAccepted := 0, true
	for _, l := range loads {
		longest, isAccepted = max(longest, l.accepted), isAccepted && l.accepted > 0
		id, _, err := r.client.LsRefs(ctx, l.repo, l.branch)
		if err != nil {
			return nil, err
		}
		if id != l.tip.id {
			lost++
		}
	}
	got := fmt.Sprintf("%.2f s, %d pushes failed meanwhile", longest.Seconds(), r.failedPushes.Load())
	if !isAccepted {
		got = fmt.Sprintf("a repository accepted none in %v", timeAfterKill)
	}
	failed := r.failed.N
	return []world.Figure{
		{What: "failed fetches after the gateway's retry", Goal: "0", Value: float64(failed),
			Got: fmt.Sprintf("%d of %d, and %d were cut %s", failed, r.fetches.Load(), r.cut.Load(),
				strings.Join(r.failed.First, "; ")), Reached: failed == 0},
		{What: "time until pushes are accepted", Goal: "<= 2 s", Value: longest.Seconds(), Got: got,
			Reached: isAccepted && longest <= 2*time.Second},
		{What: "repositories that lost acknowledged pushes", Goal: "0", Value: float64(lost),
			Got: fmt.Sprintf("%d of %d", lost, len(loads)), Reached: lost == 0},
	}, nil
}

// cluster starts two storage nodes and a gateway.
func (w *stores) cluster(ctx context.Context) (gateway *server, nodes []*server, err error) {
	settings := world.Public
	for _, name := range []string{"a", "b"} {
		address := "unix:" + filepath.Join(w.Dir, name+".sock")
		n, err := w.start(ctx, "storage", name, w.storeTable(name), "--root", filepath.Join(w.Dir, name, "cache"), "--listen",
			address)
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, n)
		settings += fmt.Sprintf("[[node]]\nname = %q\naddress = %q\n", name, address)
	}
	gateway, err = w.start(ctx, "gateway", "gateway", settings)
	return gateway, nodes, err
}

// restore restores a repository from the bucket alone.
func (w *stores) restore(ctx context.Context) ([]world.Figure, error) {
	node, err := w.node(ctx, "node")
	if err != nil {
		return nil, err
	}
	base, err := w.tip(ctx, "large")
	if err != nil {
		return nil, err
	}
	p := node.pusher("large", "topic", base)
	for range min(w.pushes, 20) {
		if _, _, err := p.push(ctx); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(w.Dir, "restored")
	cmd := exec.CommandContext(ctx, gitload.Absolute(w.restoreScript), w.url, dir, "large")
	cmd.Env = append(w.environment, "S3_ENDPOINT=http://"+w.address)
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", w.restoreScript, err, loadgen.Clean(out))
	}
	took := time.Since(begun)
	restored := filepath.Join(dir, "large.git")
	_, broken := gitload.RunGit(ctx, restored, nil, "fsck", "--full")
	want, err := gitload.RunGit(ctx, w.Dir, nil, "ls-remote", node.URL+"/large")
	if err != nil {
		return nil, err
	}
	got, err := gitload.RunGit(ctx, w.Dir, nil, "ls-remote", restored)
	if err != nil {
		return nil, err
	}
	verdict := "clean"
	if broken != nil {
		verdict = broken.Error()
	}
	return []world.Figure{{What: fmt.Sprintf("restore of %d MB", w.megabytes), Goal: "git fsck clean, same refs",
		Value: took.Seconds(), Got: fmt.Sprintf("%.1f s, %s, same refs: %v", took.Seconds(), verdict, got == want),
		Reached: broken == nil && got == want}}, nil
}
