package search_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// stuck is a client that has stopped reading results.
type stuck struct {
	found chan<- struct{} // capacity 1
	read  <-chan struct{} // closed when it continues
}

func (s stuck) Matches(search.Batch) error {
	select {
	case s.found <- struct{}{}:
	default:
	}
	<-s.read
	return nil
}

func (s stuck) Progress(search.Summary) error { return nil }

// zoekt runs only few searches at the same time. Searches whose clients have stopped reading do not count.
func TestClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	s := newSource()
	big := files{}
	for i := range 8 {
		line := fmt.Sprintf("the needle in file %d, and the rest of a long line of text\n", i)
		big[fmt.Sprintf("f%d", i)] = strings.Repeat(line, 10_000)
	}
	s.push("big", main, big)
	s.push("b", main, files{"f": "other"})
	o := options(t, s)
	o.Timeout = time.Hour
	e := start(t, o)
	await(t, e, "other", has(1))
	await(t, e, "needle", has(8))
	q, err := query.Parse("needle count:all")
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	var running sync.WaitGroup
	var ended, results atomic.Int64
	searches := runtime.NumCPU() + 1
	for range searches {
		found := make(chan struct{}, 1)
		running.Go(func() {
			summary, err := e.Search(t.Context(), search.Request{Query: q, Format: schema.StreamChunks}, stuck{found, read})
			if err != nil {
				t.Error(err)
			}
			results.Add(int64(summary.Results))
			ended.Add(1)
		})
		select {
		case <-found:
		case <-time.After(time.Minute):
			t.Error("a search waits for those whose clients do not read")
		}
		if t.Failed() {
			break
		}
	}
	if !t.Failed() {
		if f, err := ask(t, e, "other"); err != nil || f.Results != 1 || ended.Load() > 0 {
			t.Errorf("%+v, %v, %d have ended", f, err, ended.Load())
		}
	}
	close(read)
	running.Wait()
	if !t.Failed() && results.Load() != int64(8*searches) {
		t.Errorf("%d results in all", results.Load())
	}
}
