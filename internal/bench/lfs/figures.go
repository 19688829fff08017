package lfs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
)

// gigabyte is the unit of throughput and of CPU time for each GB.
const gigabyte = 1e9

// large puts the object of --mb into the repository.
func (w *lfs) large() (object, error) {
	return addObject(w.repository(), int64(w.megabytes)<<20, 'l', 0)
}

// cold lets all runners fetch one object through an empty mirror.
func (w *lfs) cold(ctx context.Context) ([]world.Figure, error) {
	o, err := w.large()
	if err != nil {
		return nil, err
	}
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	var sent, times, directs []float64
	for i := range w.rounds {
		name := fmt.Sprint("mirror", i)
		m, l, err := w.mirror(ctx, own, name)
		if err != nil {
			return nil, err
		}
		fetch := func(repository string) func(context.Context) error {
			return func(ctx context.Context) error {
				urls, _, err := batch(ctx, repository, []object{o})
				if err != nil {
					return err
				}
				return download(ctx, urls[0], o.size)
			}
		}
		direct, err := world.Together(ctx, 1, fetch("http://"+l.Addr()+"/app"))
		if err != nil {
			return nil, err
		}
		before := l.Bytes()
		took, err := world.Together(ctx, w.runners, fetch(m.URL+"/app"))
		if err != nil {
			return nil, err
		}
		sent = append(sent, float64(l.Bytes()-before))
		times, directs = append(times, took.Seconds()), append(directs, direct.Seconds())
		if err := m.Stop(); err != nil {
			return nil, err
		}
		if err := os.RemoveAll(filepath.Join(w.Dir, name)); err != nil {
			return nil, err
		}
	}
	bytes, took, direct := loadgen.Median(sent), loadgen.Median(times), loadgen.Median(directs)
	ratio := bytes / float64(o.size)
	return []world.Figure{{What: fmt.Sprintf("%d runners, empty mirror: bytes from the origin", w.runners),
		Goal: "the object once", Value: ratio,
		Got: fmt.Sprintf("%.3f of it (%.1f MB); %.2f s, one download from the origin %.2f s",
			ratio, bytes/1e6, took, direct), Reached: ratio <= 1.01}}, nil
}

// transfer is the result of one run of downloads.
type transfer struct {
	mbps float64 // megabytes per second
	cpu  float64 // CPU seconds of the server process for each GB
}

// fetch lets all runners download the object from a server once.
func (w *lfs) fetch(ctx context.Context, s *world.Process, url string, size int64) (transfer, error) {
	before, err := loadgen.ProcessCPU(s.Pid)
	if err != nil {
		return transfer{}, err
	}
	took, err := world.Together(ctx, w.runners, func(ctx context.Context) error { return download(ctx, url, size) })
	if err != nil {
		return transfer{}, err
	}
	after, err := loadgen.ProcessCPU(s.Pid)
	bytes := float64(w.runners) * float64(size)
	return transfer{bytes / 1e6 / took.Seconds(), (after - before).Seconds() / (bytes / gigabyte)}, err
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
func (w *lfs) startPairs(ctx context.Context) ([]pair, error) {
	o, err := w.large()
	if err != nil {
		return nil, err
	}
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	m, _, err := w.mirror(ctx, own, "mirror")
	if err != nil {
		return nil, err
	}
	pairs := []pair{{name: "own repository", ours: own, size: o.size}, {name: "mirror", ours: m, size: o.size}}
	for i, repository := range []string{w.repository(), filepath.Join(w.Dir, "mirror", "root", "origin", "app.git")} {
		p := &pairs[i]
		urls, _, err := batch(ctx, p.ours.URL+"/app", []object{o})
		if err == nil {
			p.url = urls[0]
			err = download(ctx, p.url, o.size) // the mirror then has it
		}
		if err == nil {
			p.static, err = w.Static(ctx, p.name, o.path(repository))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return pairs, nil
}

// compare runs both servers of a pair in turn, and returns the medians of their values and of the ratio.
func (w *lfs) compare(ctx context.Context, p pair, value func(transfer) float64) (ours, static, ratio float64,
	err error) {
	fetch := func(s *world.Process, url string) func() (float64, error) {
		return func() (float64, error) {
			t, err := w.fetch(ctx, s, url, p.size)
			return value(t), err
		}
	}
	static, ours, ratio, err = world.Compare(w.rounds, fetch(p.static, p.static.URL), fetch(p.ours, p.url))
	return ours, static, ratio, err
}

// warm compares the throughput of an object that is here.
func (w *lfs) warm(ctx context.Context) (figures []world.Figure, err error) {
	pairs, err := w.startPairs(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		ours, static, ratio, err := w.compare(ctx, p, func(t transfer) float64 { return t.mbps })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, world.Figure{What: p.name + ": throughput against Go's file server", Goal: ">= 0.9",
			Value: ratio, Got: fmt.Sprintf("%.2f (%.0f MB/s, Go %.0f MB/s)", ratio, ours, static), Reached: ratio >= 0.9})
	}
	return figures, nil
}

// cpu compares the CPU time of the server process, and measures the memory of transfers.
func (w *lfs) cpu(ctx context.Context) (figures []world.Figure, err error) {
	pairs, err := w.startPairs(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		ours, static, ratio, err := w.compare(ctx, p, func(t transfer) float64 { return t.cpu })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		heap, stacks, err := w.memory(ctx, p.ours, p.url, p.size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, world.Figure{What: p.name + ": CPU time against Go's file server", Goal: "<= 1.25",
			Value: ratio, Got: fmt.Sprintf("%.2f (%.3f s/GB, Go %.3f s/GB)", ratio, ours, static), Reached: ratio <= 1.25},
			world.Figure{What: p.name + ": heap of a transfer", Goal: "<= 64 KiB", Value: heap,
				Got:     fmt.Sprintf("%.1f KiB, stacks %.1f KiB, %d transfers", heap, stacks, w.transfers),
				Reached: heap <= 64})
	}
	return figures, nil
}

// memory returns the heap and the stacks of one transfer in KiB. Its client has read the head of the response.
func (w *lfs) memory(ctx context.Context, s *world.Process, url string, size int64) (heap, stacks float64, err error) {
	heapBefore, stacksBefore, err := memoryOf(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	conns := make(chan *loadgen.Conn, w.transfers)
	_, err = world.Together(ctx, w.transfers, func(ctx context.Context) error {
		c, _, err := open(ctx, url, size)
		if err == nil {
			conns <- c
		}
		return err
	})
	close(conns)
	heap, stacks, memoryErr := memoryOf(ctx, s)
	for c := range conns {
		c.Close()
	}
	if err == nil {
		err = memoryErr
	}
	unit := 1024 * float64(w.transfers)
	return (heap - heapBefore) / unit, (stacks - stacksBefore) / unit, err
}

// memoryOf returns the bytes of live objects and of stacks of the process, after a garbage collection.
func memoryOf(ctx context.Context, s *world.Process) (heap, stacks float64, err error) {
	if err := loadgen.CollectGarbage(ctx, s.Ops); err != nil {
		return 0, 0, err
	}
	m, err := s.Metrics(ctx)
	return m.Sum("go_memstats_heap_alloc_bytes"), m.Sum("go_memstats_stack_inuse_bytes"), err
}

// batch measures a batch request for many objects that are present.
func (w *lfs) batch(ctx context.Context) (figures []world.Figure, err error) {
	var objects []object
	for i := range w.objects {
		o, err := addObject(w.repository(), 100, 'b', i)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	split, err := w.split(ctx)
	if err != nil {
		return nil, err
	}
	m, _, err := w.mirror(ctx, own, "mirror")
	if err != nil {
		return nil, err
	}
	urls, _, err := batch(ctx, m.URL+"/app", objects)
	if err != nil {
		return nil, err
	}
	if err := fetchAll(ctx, urls, objects); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name string
		s    *world.Process
	}{{"one process", own}, {"gateway and node", split}, {"mirror", m}} {
		var times loadgen.Samples
		for range max(w.rounds, 3) {
			_, took, err := batch(ctx, p.s.URL+"/app", objects)
			if err != nil {
				return nil, err
			}
			times = append(times, took)
		}
		ms := times.Summarize()
		figures = append(figures, world.Figure{What: fmt.Sprintf("%s: batch of %d objects", p.name, len(objects)),
			Goal: "<= 100 ms", Value: ms.P50, Got: fmt.Sprintf("%.1f ms, max %.1f ms", ms.P50, ms.Max),
			Reached: ms.P50 <= 100})
	}
	return figures, nil
}

// fetchAll downloads objects on a few connections.
func fetchAll(ctx context.Context, urls []string, objects []object) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: fetchers}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	next := 0
	_, err := world.Together(ctx, fetchers, func(ctx context.Context) error {
		for {
			mu.Lock()
			i := next
			next++
			mu.Unlock()
			if i >= len(urls) {
				return ctx.Err()
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, urls[i], nil)
			if err != nil {
				return err
			}
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			n, err := io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if err == nil && n != objects[i].size {
				err = fmt.Errorf("%s: status %d with %d bytes, want %d", urls[i], response.StatusCode, n, objects[i].size)
			}
			if err != nil {
				return err
			}
		}
	})
	return err
}

// fetchers is the number of connections of fetchAll.
const fetchers = 8
