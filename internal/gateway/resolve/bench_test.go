package resolve

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/packhorse-git/packhorse/internal/node"
)

// benchQuestions are as many as a page of results has.
func benchQuestions(fake *fakeNode, n int) (questions []node.Question) {
	fake.mu.Lock()
	defer fake.mu.Unlock()
	for i := range n {
		name := fmt.Sprintf("release/%d", i)
		fake.repos[path("team/app")].refs[name] = uint64(i + 1)
		questions = append(questions, question("team/app", name))
	}
	return questions
}

// median has fn called b.N times and reports the median of the times that it took.
func median(b *testing.B, fn func(i int)) {
	took := make([]time.Duration, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range took {
		began := time.Now()
		fn(i)
		took[i] = time.Since(began)
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkResolveMemory is one question that memory answers, through the resolver's own method.
func BenchmarkResolveMemory(b *testing.B) {
	fake := newFakeNode("team/app")
	tiers, questions := newTiers(b, fake), benchQuestions(fake, 1000)
	if _, err := tiers.Resolve(b.Context(), questions); err != nil {
		b.Fatal(err)
	}
	median(b, func(i int) {
		if r, err := tiers.Resolve(b.Context(), questions[i%1000:i%1000+1]); err != nil || r[0].Err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkResolvePage is a page of 1,000 results that memory answers.
func BenchmarkResolvePage(b *testing.B) {
	fake := newFakeNode("team/app")
	tiers, questions := newTiers(b, fake, func(o *Options) { o.Entries = 10_000 }), benchQuestions(fake, 1000)
	median(b, func(int) {
		if _, err := tiers.Resolve(b.Context(), questions); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkResolveRedis is one question that memory does not know any more and Redis answers.
func BenchmarkResolveRedis(b *testing.B) {
	server, fake := startRedis(b), newFakeNode("team/app")
	url := server.onLoopback(b)
	questions := benchQuestions(fake, 3000)
	fill, tiers := gatewayOver(b, fake, server.url), newTiers(b, fake, func(o *Options) {
		r, err := NewRedis(RedisOptions{URL: url, Timeout: patience, Metrics: o.Metrics, Log: o.Log})
		if err != nil {
			b.Fatal(err)
		}
		o.Redis, o.Entries = r, 100
	})
	if _, err := fill.Resolve(b.Context(), questions); err != nil {
		b.Fatal(err)
	}
	eventually(b, "all answers are in Redis", func() bool {
		n, _ := redis.Int(server.do("DBSIZE"))
		return n == 3001
	})
	ask(b, tiers, "team/app", "HEAD")
	before := hits(tiers)
	median(b, func(i int) {
		if r, err := tiers.Resolve(b.Context(), questions[i%3000:i%3000+1]); err != nil || r[0].Err != nil {
			b.Fatal(err)
		}
	})
	b.ReportMetric((hits(tiers)-before)/float64(b.N), "redis-hits/op")
}

// onLoopback has Redis listen on a port, too.
func (s *redisServer) onLoopback(b *testing.B) (url string) {
	b.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	s.configure(b, "port", port)
	return "redis://127.0.0.1:" + port
}

// BenchmarkResolveTogether measures 913 simultaneous questions about the same revision, which is not in memory.
func BenchmarkResolveTogether(b *testing.B) {
	fake := newFakeNode("team/app")
	tiers := newTiers(b, fake)
	calls, _ := fake.counts()
	median(b, func(i int) {
		tiers.Changed(path("team/app"))
		var all sync.WaitGroup
		begin := make(chan bool)
		for range 913 {
			all.Go(func() {
				<-begin
				wantSerial(b, tiers, "team/app", 1)
			})
		}
		close(begin)
		all.Wait()
	})
	now, _ := fake.counts()
	b.ReportMetric(float64(now-calls)/float64(b.N), "fills/op")
}

// BenchmarkRead measures reads of the memory tier, by 8 goroutines among 10,000 answers. It compares them with a map
// behind a read-write lock, and with one behind an atomic pointer, which is the lower bound.
func BenchmarkRead(b *testing.B) {
	fake := newFakeNode("team/app")
	tiers, questions := newTiers(b, fake, func(o *Options) { o.Entries = 20_000 }), benchQuestions(fake, 10_000)
	results, err := tiers.Resolve(b.Context(), questions)
	if err != nil {
		b.Fatal(err)
	}
	plain := map[node.Question]node.Result{}
	for i, q := range questions {
		plain[q] = results[i]
	}
	var lock sync.RWMutex
	var snapshot atomic.Pointer[map[node.Question]node.Result]
	snapshot.Store(&plain)
	for _, way := range []struct {
		name string
		read func(node.Question, *node.Result) bool
	}{
		{"tier", tiers.recall},
		{"rwmutex", func(q node.Question, into *node.Result) (ok bool) {
			lock.RLock()
			defer lock.RUnlock()
			*into, ok = plain[q]
			return ok
		}},
		{"snapshot", func(q node.Question, into *node.Result) (ok bool) {
			*into, ok = (*snapshot.Load())[q]
			return ok
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(1, 8/runtime.GOMAXPROCS(0)))
			b.RunParallel(func(pb *testing.PB) {
				var result node.Result
				for i := 0; pb.Next(); i++ {
					if !way.read(questions[i%len(questions)], &result) {
						b.Error("it is gone")
						return
					}
				}
			})
		})
	}
}

// The read path allocates nothing.
func TestReadAllocatesNothing(t *testing.T) {
	fake := newFakeNode("team/app")
	tiers := newTiers(t, fake)
	questions := benchQuestions(fake, 10)
	if _, err := tiers.Resolve(t.Context(), questions); err != nil {
		t.Fatal(err)
	}
	var result node.Result
	if n := testing.AllocsPerRun(5000, func() {
		for _, q := range questions {
			if !tiers.recall(q, &result) {
				t.Fatal("it is gone")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations for 10 look-ups", n)
	}
}
