package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// Each read sees every change that was acknowledged on any node before it began. It also sees everything that an
// earlier read saw. Meanwhile writes are late, lost, doubled or answered with errors.
func TestReadsAreLinearizable(t *testing.T) {
	t.Parallel()
	seeds := 30
	if testing.Short() {
		seeds = 3
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) { checkLinearizable(t, seed) })
	}
}

// slowAnswers is a bucket that pauses between an operation and its answer.
type slowAnswers struct {
	*buckettest.Memory
	pause func()
}

// Get implements bucket.Bucket.
func (b slowAnswers) Get(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	defer b.pause()
	return b.Memory.Get(ctx, key, limit)
}

func checkLinearizable(t *testing.T, seed uint64) {
	b := newBucket(t)
	random := rand.New(rand.NewPCG(seed, 34))
	var mu sync.Mutex
	isFast := true
	pause := func() {
		mu.Lock()
		d := time.Duration(random.Int64N(int64(400 * time.Millisecond)))
		if isFast {
			d = 0
		}
		mu.Unlock()
		time.Sleep(d)
	}
	setFast := func(fast bool) {
		mu.Lock()
		defer mu.Unlock()
		isFast = fast
	}
	slow := func(o *Options) { o.Bucket = slowAnswers{b, pause} }
	nodes := []*Store{newNode(t, b, slow), newNode(t, b, slow)}
	create(t, nodes[0], "x")
	places := []*place{acquire(t, nodes[0], "x"), acquire(t, nodes[1], "x")}
	setFast(false)
	b.SetHook(func(string, string) error { pause(); return nil })
	b.SetFaults(buckettest.Faults{LostRequests: .1, LostAnswers: .1, LateWrites: .1, DoubledWrites: .1, FailedReads: .05})
	var certain atomic.Uint64 // the greatest number that a caller has seen
	acknowledged := map[uint64]string{}
	raise := func(n uint64) {
		for old := certain.Load(); n > old && !certain.CompareAndSwap(old, n); old = certain.Load() {
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		p := places[i%2]
		all.Go(func() {
			for range 12 {
				pause()
				low := certain.Load()
				if i < 4 {
					layers, err := p.Layers(t.Context())
					if err == nil && layers.Number < low {
						t.Errorf("seed %d: a read has record %d, want at least %d", seed, layers.Number, low)
					}
					if err == nil {
						raise(layers.Number)
					} else if !fault.Is(err, fault.Unavailable) {
						t.Errorf("seed %d: Layers = %v", seed, err)
					}
					continue
				}
				done, err := p.change(t.Context(), func(head *state) (*replog.Record, error) {
					return head.record.Next(replog.KindConfigure, fmt.Sprint(i), time.Now()), nil
				})
				if err == nil {
					if done.record.Number <= low {
						t.Errorf("seed %d: a change has record %d, want more than %d", seed, done.record.Number, low)
					}
					raise(done.record.Number)
					mu.Lock()
					acknowledged[done.record.Number] = done.record.Txn
					mu.Unlock()
				} else if !fault.Is(err, fault.Unavailable) {
					t.Errorf("seed %d: change = %v", seed, err)
				}
			}
		})
	}
	all.Wait()
	b.SetFaults(buckettest.Faults{})
	b.SetHook(nil)
	setFast(true)
	b.Settle()
	time.Sleep(2 * time.Second) // for requests whose result is not needed
	log := places[0].log
	for n, txn := range acknowledged {
		if record, err := log.Get(t.Context(), n); err != nil || record.Txn != txn {
			t.Errorf("seed %d: record %d = %v, %v, want the acknowledged one", seed, n, record, err)
		}
	}
	if len(acknowledged) < 10 {
		t.Errorf("seed %d: only %d changes were acknowledged", seed, len(acknowledged))
	}
}
