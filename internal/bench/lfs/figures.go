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
)

// gigabyte is the unit of throughput and of CPU time for each GB.
const gigabyte = 1e9

// large puts the object of --mb into the repository.
func (w *world) large() (object, error) {
	return addObject(w.repository(), int64(w.megabytes)<<20, 'l', 0)
}

// cold lets all runners fetch one object through an empty mirror.
func (w *world) cold(ctx context.Context) ([]loadgen.Figure, error) {
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
		direct, err := together(ctx, 1, fetch("http://"+l.Addr()+"/app"))
		if err != nil {
			return nil, err
		}
		before := l.Bytes()
		took, err := together(ctx, w.runners, fetch(m.url+"/app"))
		if err != nil {
			return nil, err
		}
		sent = append(sent, float64(l.Bytes()-before))
		times, directs = append(times, took.Seconds()), append(directs, direct.Seconds())
		if err := m.Stop(); err != nil {
			return nil, err
		}
		if err := os.RemoveAll(filepath.Join(w.dir, name)); err != nil {
			return nil, err
		}
	}
	bytes, took, direct := loadgen.Median(sent), loadgen.Median(times), loadgen.Median(directs)
	ratio := bytes / float64(o.size)
	return []loadgen.Figure{{What: fmt.Sprintf("%d runners, empty mirror: bytes from the origin", w.runners),
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
func (w *world) fetch(ctx context.Context, s *server, url string, size int64) (transfer, error) {
	before, err := loadgen.ProcessCPU(s.Pid)
	if err != nil {
		return transfer{}, err
	}
	took, err := together(ctx, w.runners, func(ctx context.Context) error { return download(ctx, url, size) })
	if err != nil {
		return transfer{}, err
	}
	after, err := loadgen.ProcessCPU(s.Pid)
	bytes := float64(w.runners) * float64(size)
	return transfer{bytes / 1e6 / took.Seconds(), (after - before).Seconds() / (bytes / gigabyte)}, err
}

// peers are the servers that are compared: Go's file server is the first.
type peers struct {
	names   []string
	servers []*server
	urls    []string
	size    int64
}

// peerNames are the servers after Go's.
var peerNames = []string{"own repository", "mirror"}

// startPeers starts Go's file server, a server with the object, and a mirror that has fetched it.
func (w *world) startPeers(ctx context.Context) (*peers, error) {
	o, err := w.large()
	if err != nil {
		return nil, err
	}
	static, err := w.static(ctx, o.path(w.repository()))
	if err != nil {
		return nil, err
	}
	p := &peers{names: []string{"Go's file server"}, servers: []*server{static}, urls: []string{static.url}, size: o.size}
	own, err := w.own(ctx)
	if err != nil {
		return nil, err
	}
	m, _, err := w.mirror(ctx, own, "mirror")
	if err != nil {
		return nil, err
	}
	for i, s := range []*server{own, m} {
		urls, _, err := batch(ctx, s.url+"/app", []object{o})
		if err == nil {
			err = download(ctx, urls[0], o.size) // the mirror then has it
		}
		if err != nil {
			return nil, err
		}
		p.names, p.servers, p.urls = append(p.names, peerNames[i]), append(p.servers, s), append(p.urls, urls[0])
	}
	return p, nil
}

// compare runs all peers in turn, and returns the medians of each peer and of its ratio to the first.
func (w *world) compare(ctx context.Context, p *peers,
	value func(transfer) float64) (values, ratios []float64, err error) {
	all, allRatios := make([][]float64, len(p.servers)), make([][]float64, len(p.servers))
	for range w.rounds {
		for i, s := range p.servers {
			t, err := w.fetch(ctx, s, p.urls[i], p.size)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", p.names[i], err)
			}
			all[i] = append(all[i], value(t))
			allRatios[i] = append(allRatios[i], value(t)/all[0][len(all[0])-1])
		}
	}
	for i := range all {
		values, ratios = append(values, loadgen.Median(all[i])), append(ratios, loadgen.Median(allRatios[i]))
	}
	return values, ratios, nil
}

// warm compares the throughput of an object that is here.
func (w *world) warm(ctx context.Context) (figures []loadgen.Figure, err error) {
	p, err := w.startPeers(ctx)
	if err != nil {
		return nil, err
	}
	mbps, ratios, err := w.compare(ctx, p, func(t transfer) float64 { return t.mbps })
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(mbps); i++ {
		figures = append(figures, loadgen.Figure{What: p.names[i] + ": throughput against Go's file server", Goal: ">= 0.9",
			Value: ratios[i], Got: fmt.Sprintf("%.2f (%.0f MB/s, Go %.0f MB/s)", ratios[i], mbps[i], mbps[0]),
			Reached: ratios[i] >= 0.9})
	}
	return figures, nil
}

// cpu compares the CPU time of the server process, and measures the memory of transfers.
func (w *world) cpu(ctx context.Context) (figures []loadgen.Figure, err error) {
	p, err := w.startPeers(ctx)
	if err != nil {
		return nil, err
	}
	cpu, ratios, err := w.compare(ctx, p, func(t transfer) float64 { return t.cpu })
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(cpu); i++ {
		heap, stacks, err := w.memory(ctx, p.servers[i], p.urls[i], p.size)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.names[i], err)
		}
		figures = append(figures, loadgen.Figure{What: p.names[i] + ": CPU time against Go's file server", Goal: "<= 1.25",
			Value: ratios[i], Got: fmt.Sprintf("%.2f (%.3f s/GB, Go %.3f s/GB)", ratios[i], cpu[i], cpu[0]),
			Reached: ratios[i] <= 1.25},
			loadgen.Figure{What: p.names[i] + ": heap of a transfer", Goal: "<= 64 KiB", Value: heap,
				Got:     fmt.Sprintf("%.1f KiB, stacks %.1f KiB, %d transfers", heap, stacks, w.transfers),
				Reached: heap <= 64})
	}
	return figures, nil
}

// memory returns the heap and the stacks of one transfer in KiB. Its client has read the head of the response.
func (w *world) memory(ctx context.Context, s *server, url string, size int64) (heap, stacks float64, err error) {
	heapBefore, stacksBefore, err := s.memory(ctx)
	if err != nil {
		return 0, 0, err
	}
	conns := make(chan *loadgen.Conn, w.transfers)
	_, err = together(ctx, w.transfers, func(ctx context.Context) error {
		c, _, err := open(ctx, url, size)
		if err == nil {
			conns <- c
		}
		return err
	})
	close(conns)
	heap, stacks, memoryErr := s.memory(ctx)
	for c := range conns {
		c.Close()
	}
	if err == nil {
		err = memoryErr
	}
	unit := 1024 * float64(w.transfers)
	return (heap - heapBefore) / unit, (stacks - stacksBefore) / unit, err
}

// memory returns the bytes of live objects and of stacks of the process, after a garbage collection.
func (s *server) memory(ctx context.Context) (heap, stacks float64, err error) {
	response, err := loadgen.GetOps(ctx, s.ops+"/debug/pprof/heap?gc=1")
	if err != nil {
		return 0, 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	if err == nil && response.StatusCode != http.StatusOK {
		err = &loadgen.HTTPError{Status: response.StatusCode}
	}
	if err == nil {
		heap, err = loadgen.ReadMetric(ctx, s.ops, "go_memstats_heap_alloc_bytes", "")
	}
	if err == nil {
		stacks, err = loadgen.ReadMetric(ctx, s.ops, "go_memstats_stack_inuse_bytes", "")
	}
	return heap, stacks, err
}

// batch measures a batch request for many objects that are present.
func (w *world) batch(ctx context.Context) (figures []loadgen.Figure, err error) {
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
	urls, _, err := batch(ctx, m.url+"/app", objects)
	if err != nil {
		return nil, err
	}
	if err := fetchAll(ctx, urls, objects); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		name string
		s    *server
	}{{"one process", own}, {"gateway and node", split}, {"mirror", m}} {
		var times loadgen.Samples
		for range max(w.rounds, 3) {
			_, took, err := batch(ctx, p.s.url+"/app", objects)
			if err != nil {
				return nil, err
			}
			times = append(times, took)
		}
		ms := times.Summarize()
		figures = append(figures, loadgen.Figure{What: fmt.Sprintf("%s: batch of %d objects", p.name, len(objects)),
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
	_, err := together(ctx, fetchers, func(ctx context.Context) error {
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
