package lfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// large puts the object of --mb into the repository.
func (w *lfs) large() object {
	return world.Must(addObject(w.repository(), int64(w.megabytes)<<20, 'l', 0))
}

// urls asks a server for the URLs of objects.
func urls(ctx context.Context, s *world.Process, objects ...object) []string {
	list, _, err := batch(ctx, s.URL+"/app", objects)
	world.Check(err)
	return list
}

// cold lets all runners fetch one object through an empty mirror.
func (w *lfs) cold(ctx context.Context) []world.Figure {
	o, own := w.large(), w.own(ctx)
	var sent, times, directs []float64
	for i := range w.rounds {
		name := fmt.Sprint("mirror", i)
		m, l := w.mirror(ctx, own, name)
		fetch := func(repository string) func(context.Context) error {
			return func(ctx context.Context) error {
				urls, _, err := batch(ctx, repository, []object{o})
				if err != nil {
					return err
				}
				return download(ctx, urls[0], o.size)
			}
		}
		directs = append(directs, world.Together(ctx, 1, fetch("http://"+l.Addr()+"/app")).Seconds())
		before := l.Bytes()
		times = append(times, world.Together(ctx, w.runners, fetch(m.URL+"/app")).Seconds())
		sent = append(sent, float64(l.Bytes()-before))
		world.Check(m.Stop())
		world.Check(os.RemoveAll(filepath.Join(w.Dir, name)))
	}
	bytes := loadgen.Median(sent)
	ratio := bytes / float64(o.size)
	return []world.Figure{world.NewFigure(fmt.Sprintf("%d runners, empty mirror: bytes from the origin", w.runners),
		"the object once", ratio, ratio <= 1.01, "%.3f of it, %.1f MB (%.2f s; directly %.2f s)", ratio,
		bytes/1e6, loadgen.Median(times), loadgen.Median(directs))}
}

// pair is a server with the object, and Go's file server for the file that it sends. The same bytes in another file may
// be in smaller pages of the page cache, which cost more.
type pair struct {
	name         string
	ours, static *world.Process
	url          string // of the object
	size         int64
}

// startPairs starts a server with the object, and a mirror that has fetched it.
func (w *lfs) startPairs(ctx context.Context) []pair {
	o, own := w.large(), w.own(ctx)
	m, _ := w.mirror(ctx, own, "mirror")
	pairs := []pair{{name: "own repository", ours: own, size: o.size}, {name: "mirror", ours: m, size: o.size}}
	for i, repository := range []string{w.repository(), filepath.Join(w.Dir, "mirror", "root", "origin", "app.git")} {
		p := &pairs[i]
		p.url = urls(ctx, p.ours, o)[0]
		world.Check(download(ctx, p.url, o.size)) // the mirror then has it
		p.static = world.Must(w.Static(ctx, p.name, o.path(repository)))
	}
	return pairs
}

// transfer is the result of one run of downloads.
type transfer struct {
	mbps float64 // megabytes per second
	cpu  float64 // CPU seconds of the server process for each GB
}

// compare lets all runners download the object from both servers of a pair in turn, and returns the medians of their
// values and of the ratio.
func (w *lfs) compare(ctx context.Context, p pair, value func(transfer) float64) (static, ours, ratio float64) {
	fetch := func(s *world.Process, url string) func() float64 {
		return func() float64 {
			before := world.Must(loadgen.ProcessCPU(s.Pid))
			took := world.Together(ctx, w.runners, func(ctx context.Context) error { return download(ctx, url, p.size) })
			cpu := world.Must(loadgen.ProcessCPU(s.Pid)) - before
			bytes := float64(w.runners) * float64(p.size)
			return value(transfer{bytes / 1e6 / took.Seconds(), cpu.Seconds() / (bytes / 1e9)})
		}
	}
	return world.Compare(w.rounds, fetch(p.static, p.static.URL), fetch(p.ours, p.url))
}

// warm compares the throughput of an object that is here.
func (w *lfs) warm(ctx context.Context) (figures []world.Figure) {
	for _, p := range w.startPairs(ctx) {
		static, ours, ratio := w.compare(ctx, p, func(t transfer) float64 { return t.mbps })
		figures = append(figures, world.NewFigure(p.name+": throughput against Go's file server", ">= 0.9", ratio,
			ratio >= 0.9, "%.2f (%.0f MB/s, Go %.0f MB/s)", ratio, ours, static))
	}
	return figures
}

// cpu compares the CPU time of the server process, and measures the memory of transfers.
func (w *lfs) cpu(ctx context.Context) (figures []world.Figure) {
	for _, p := range w.startPairs(ctx) {
		static, ours, ratio := w.compare(ctx, p, func(t transfer) float64 { return t.cpu })
		heap, stacks := w.memory(ctx, p)
		figures = append(figures, world.NewFigure(p.name+": CPU time against Go's file server", "<= 1.25", ratio,
			ratio <= 1.25, "%.2f (%.3f s/GB, Go %.3f s/GB)", ratio, ours, static),
			world.NewFigure(p.name+": heap of a transfer", "<= 64 KiB", heap, heap <= 64,
				"%.1f KiB, stacks %.1f KiB, %d transfers", heap, stacks, w.transfers))
	}
	return figures
}

// memory returns the heap and the stacks of one transfer in KiB. Its client has read the head of the response.
func (w *lfs) memory(ctx context.Context, p pair) (heap, stacks float64) {
	read := func() loadgen.Metrics { // after a garbage collection
		world.Check(loadgen.CollectGarbage(ctx, p.ours.Ops))
		return world.Must(p.ours.Metrics(ctx))
	}
	before := read()
	conns := make(chan *loadgen.Conn, w.transfers)
	world.Together(ctx, w.transfers, func(ctx context.Context) error {
		c, _, err := open(ctx, p.url, p.size)
		if err == nil {
			conns <- c
		}
		return err
	})
	close(conns)
	d := read().Since(before)
	for c := range conns {
		c.Close()
	}
	unit := 1024 * float64(w.transfers)
	return d.Sum("go_memstats_heap_alloc_bytes") / unit, d.Sum("go_memstats_stack_inuse_bytes") / unit
}

// batch measures a batch request for many objects that are present.
func (w *lfs) batch(ctx context.Context) (figures []world.Figure) {
	var objects []object
	for i := range w.objects {
		objects = append(objects, world.Must(addObject(w.repository(), 100, 'b', i)))
	}
	own, split := w.own(ctx), w.split(ctx)
	m, _ := w.mirror(ctx, own, "mirror")
	world.Check(fetchAll(ctx, urls(ctx, m, objects...), objects))
	for _, p := range []struct {
		name string
		s    *world.Process
	}{{"one process", own}, {"gateway and node", split}, {"mirror", m}} {
		var times loadgen.Samples
		for range max(w.rounds, 3) {
			_, took, err := batch(ctx, p.s.URL+"/app", objects)
			world.Check(err)
			times = append(times, took)
		}
		ms := times.Summarize()
		figures = append(figures, world.NewFigure(fmt.Sprintf("%s: batch of %d objects", p.name, len(objects)), "<= 100 ms",
			ms.P50, ms.P50 <= 100, "%.1f ms, max %.1f ms", ms.P50, ms.Max))
	}
	return figures
}

// fetchers is the number of connections of fetchAll.
const fetchers = 8

// fetchAll downloads objects on a few connections.
func fetchAll(ctx context.Context, urls []string, objects []object) (err error) {
	defer world.Rescue(&err)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: fetchers}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	fetch := func(ctx context.Context, url string, size int64) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		n, err := io.Copy(io.Discard, response.Body)
		if err == nil && n != size {
			err = fmt.Errorf("%s: status %d with %d bytes, want %d", url, response.StatusCode, n, size)
		}
		return err
	}
	var next atomic.Int64
	world.Together(ctx, fetchers, func(ctx context.Context) error {
		for i := next.Add(1) - 1; i < int64(len(urls)); i = next.Add(1) - 1 {
			if err := fetch(ctx, urls[i], objects[i].size); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// resume uploads an object with git-lfs through a proxy that cuts its connection.
func (w *lfs) resume(ctx context.Context) []world.Figure {
	own := w.own(ctx)
	token := world.Must(own.Token(ctx))
	var values []float64
	var took time.Duration
	for i := range w.rounds {
		local := filepath.Join(w.Dir, fmt.Sprint("local", i))
		world.Must(gitload.RunGit(ctx, w.Dir, nil, "init", "-q", local))
		o := world.Must(addObject(filepath.Join(local, ".git"), int64(w.upload)<<20, 'r', i))
		l := world.Must(w.Link(own.URL[len("http://"):]))
		begun := time.Now()
		ended := make(chan int)
		pushing, cancel := context.WithCancel(ctx)
		go func() { ended <- cutOften(pushing, l, o.size, w.cuts) }()
		err := w.push(ctx, local, "http://"+l.Addr(), token, o)
		took = time.Since(begun)
		cancel()
		if cuts := <-ended; err == nil && cuts != w.cuts {
			err = fmt.Errorf("the upload was cut %d times, want %d", cuts, w.cuts)
		}
		world.Check(err)
		if info := world.Must(os.Stat(o.path(w.repository()))); info.Size() != o.size {
			world.Check(fmt.Errorf("the server's object has %d bytes, want %d", info.Size(), o.size))
		}
		values = append(values, float64(l.Sent()-o.size)/float64(o.size))
		world.Check(errors.Join(os.RemoveAll(local), os.Remove(o.path(w.repository()))))
	}
	again := loadgen.Median(values)
	what := fmt.Sprintf("upload of %d MiB, cut %d times: bytes sent again", w.upload, w.cuts)
	return []world.Figure{world.NewFigure(what, "<= 1 %", again*100, again <= 0.01, "%.2f %%, %v", again*100,
		took.Round(10*time.Millisecond))}
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
