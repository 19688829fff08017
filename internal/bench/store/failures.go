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
	"slices"
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
func (w *stores) outage(ctx context.Context) []world.Figure {
	node := w.node(ctx, "node")
	c := gitload.NewClient(node.URL, node.token)
	defer c.Close()
	p := node.pusher("app", "topic", w.base)
	_, _, err := p.Push(ctx) // copies the repository
	world.Check(err)
	w.link.Down()
	begun := time.Now()
	var load sync.WaitGroup
	pushes, accepted := 0, &loadgen.Failures{}
	load.Go(func() {
		for loadgen.Sleep(ctx, 100*time.Millisecond) && time.Since(begun) < w.options.outage {
			pushes++
			if err := node.refuses(ctx, p, time.Since(begun) > pushGrace); err != nil {
				accepted.Add(err)
			}
		}
	})
	load.Go(func() {
		loadgen.Sleep(ctx, w.options.outage/2)
		w.link.Silence(true)
		err = w.link.Up()
	})
	fetches, failed := world.Every(ctx, 20, w.options.outage, func(int) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err := c.Fetch(ctx, "app", w.base.ID, 1)
		return err
	})
	load.Wait()
	w.link.Silence(false)
	world.Check(errors.Join(err, ctx.Err()))
	ended := time.Now()
	for _, _, err = p.Push(ctx); err != nil; _, _, err = p.Push(ctx) {
		if !loadgen.Sleep(ctx, 50*time.Millisecond) || time.Since(ended) > patience {
			world.Check(fmt.Errorf("no push %v after the end of the outage: %w", patience, err))
		}
	}
	return []world.Figure{
		world.NewFigure("failed fetches of known commits", "0", float64(failed.N), failed.N == 0, "%d of %d in %v %s",
			failed.N, fetches, w.options.outage, strings.Join(failed.First, "; ")),
		world.NewFigure("pushes not refused before a byte of the pack", "0", float64(accepted.N), accepted.N == 0,
			"%d of %d, accepted again after %.1f s %s", accepted.N, pushes, time.Since(ended).Seconds(),
			strings.Join(accepted.First, "; ")),
	}
}

// refuses reports an error unless the server refuses a push with status 503 when the client asks for refs. With
// isDirect it also has to refuse a client that does not ask, and waits for permission to send its pack.
func (s *server) refuses(ctx context.Context, p *gitload.Pusher, isDirect bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, _, err := p.Client.Get(ctx, "/"+p.Repo+"/info/refs?service=git-receive-pack")
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
	_, data := p.Request()
	sent := &countReader{r: bytes.NewReader(data)}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/"+p.Repo+"/git-receive-pack", sent)
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

// timeAfterKill is how long the load goes on after the kill.
const timeAfterKill = 8 * time.Second

// kill kills one of two nodes behind a gateway, and fetches and pushes meanwhile.
func (w *stores) kill(ctx context.Context) []world.Figure {
	gateway, nodes := w.cluster(ctx)
	client := gitload.NewClient(gateway.URL, "")
	defer client.Close()
	pushers := make([]*gitload.Pusher, min(8, w.repositories))
	for i := range pushers {
		pushers[i] = gateway.pusher(fmt.Sprint("r", i), "topic", w.base)
		_, _, err := pushers[i].Push(ctx)
		world.Check(err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeAfterKill+patience)
	defer cancel()
	var running sync.WaitGroup
	var over atomic.Bool
	var killed atomic.Pointer[time.Time]
	repeat := func(call func()) {
		running.Go(func() {
			for !over.Load() && loadgen.Sleep(ctx, 20*time.Millisecond) {
				call()
			}
		})
	}
	var fetches, cut, failedPushes atomic.Int64
	failed := &loadgen.Failures{}                   // fetches before their first byte
	accepted := make([]time.Duration, len(pushers)) // from the kill to the end of the first push that began after it
	for i, p := range pushers {
		repeat(func() {
			fetches.Add(1)
			if n, err := client.Fetch(ctx, p.Repo, w.base.ID, 1); n > 0 && err != nil {
				cut.Add(1) // only the client can repeat it
			} else if err != nil {
				failed.Add(err)
			}
		})
		repeat(func() {
			at := killed.Load()
			if _, _, err := p.Push(ctx); err != nil {
				failedPushes.Add(1)
				_ = p.Reload(ctx) // if it fails, so does the next push
			} else if at != nil && accepted[i] == 0 {
				accepted[i] = time.Since(*at)
			}
		})
	}
	loadgen.Sleep(ctx, 2*time.Second)
	nodes[0].MayFail = true // it may end by a signal
	err := syscall.Kill(nodes[0].Pid, syscall.SIGKILL)
	killed.Store(new(time.Now()))
	loadgen.Sleep(ctx, timeAfterKill)
	over.Store(true)
	running.Wait()
	world.Check(errors.Join(err, ctx.Err()))
	lost := 0
	for _, p := range pushers {
		id, _, err := client.LsRefs(ctx, p.Repo, p.Branch)
		world.Check(err)
		if id != p.Tip.ID {
			lost++
		}
	}
	longest := slices.Max(accepted)
	got := fmt.Sprintf("%.2f s, %d pushes failed meanwhile", longest.Seconds(), failedPushes.Load())
	if slices.Contains(accepted, 0) {
		longest, got = time.Hour, fmt.Sprintf("a repository accepted none in %v", timeAfterKill)
	}
	return []world.Figure{
		world.NewFigure("failed fetches after the gateway's retry", "0", float64(failed.N), failed.N == 0,
			"%d of %d, and %d were cut %s", failed.N, fetches.Load(), cut.Load(), strings.Join(failed.First, "; ")),
		world.NewFigure("time until pushes are accepted", "<= 2 s", longest.Seconds(), longest <= 2*time.Second, "%s", got),
		world.NewFigure("repositories that lost acknowledged pushes", "0", float64(lost), lost == 0, "%d of %d", lost,
			len(pushers)),
	}
}

// cluster starts two storage nodes and a gateway.
func (w *stores) cluster(ctx context.Context) (gateway *server, nodes []*server) {
	settings := world.Public
	for _, name := range []string{"a", "b"} {
		address := "unix:" + filepath.Join(w.Dir, name+".sock")
		nodes = append(nodes, w.start(ctx, "storage", name, w.storeTable(name), "--root",
			filepath.Join(w.Dir, name, "cache"), "--listen", address))
		settings += fmt.Sprintf("[[node]]\nname = %q\naddress = %q\n", name, address)
	}
	return w.start(ctx, "gateway", "gateway", settings), nodes
}

// restore restores a repository from the bucket alone.
func (w *stores) restore(ctx context.Context) []world.Figure {
	node := w.node(ctx, "node")
	p := node.pusher("large", "topic", world.Must(w.tip(ctx, "large")))
	for range min(w.pushes, 20) {
		_, _, err := p.Push(ctx)
		world.Check(err)
	}
	dir := filepath.Join(w.Dir, "restored")
	cmd := exec.CommandContext(ctx, gitload.Absolute(w.restoreScript), w.url, dir, "large")
	cmd.Env = append(w.environment, "S3_ENDPOINT=http://"+w.address)
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		world.Check(fmt.Errorf("%s: %w: %s", w.restoreScript, err, loadgen.Clean(out)))
	}
	took := time.Since(begun).Seconds()
	restored := filepath.Join(dir, "large.git")
	want := world.Must(gitload.RunGit(ctx, w.Dir, nil, "ls-remote", node.URL+"/large"))
	got := world.Must(gitload.RunGit(ctx, w.Dir, nil, "ls-remote", restored))
	verdict := "clean"
	_, broken := gitload.RunGit(ctx, restored, nil, "fsck", "--full")
	if broken != nil {
		verdict = broken.Error()
	}
	return []world.Figure{world.NewFigure(fmt.Sprintf("restore of %d MB", w.megabytes), "git fsck clean, same refs", took,
		broken == nil && got == want, "%.1f s, %s, same refs: %v", took, verdict, got == want)}
}
