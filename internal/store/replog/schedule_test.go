package replog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const repository = "aaaaaaaaaaaaaaaaaaaaaaaaaa"

// first is record 1 of a repository.
func first(txn string) *replog.Record {
	return &replog.Record{Number: 1, Txn: txn, Kind: replog.KindCreate, Head: "refs/heads/main", ObjectFormat: git.SHA1}
}

// jitter gives each request its own latency, so that the seed determines the order of the requests of all writers.
type jitter struct {
	bucket.Bucket
	random *rand.Rand
}

func (j jitter) sleep() { time.Sleep(time.Duration(j.random.IntN(20_000_000)) + 1) }

func (j jitter) Create(ctx context.Context, key string, body []byte) error {
	j.sleep()
	err := j.Bucket.Create(ctx, key, body)
	j.sleep()
	return err
}

func (j jitter) Get(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	j.sleep()
	body, info, err := j.Bucket.Get(ctx, key, limit)
	j.sleep()
	return body, info, err
}

// attempt is a result that a writer reported to its client.
type attempt struct {
	record  *replog.Record
	outcome replog.Outcome
	settle  func(context.Context) replog.Outcome
}

// appender appends a record. It is a parameter so that the test can prove that it detects a wrong one.
type appender func(context.Context, bucket.Bucket, *replog.Record) attempt

func careful(ctx context.Context, b bucket.Bucket, r *replog.Record) attempt {
	a, err := replog.Open(b, repository).Append(ctx, r)
	if err != nil {
		panic(err)
	}
	return attempt{r, a.Outcome(), a.Settle}
}

// naive reports each answer that is not a success as a failure.
func naive(ctx context.Context, b bucket.Bucket, r *replog.Record) attempt {
	body, err := r.Encode()
	if err != nil {
		panic(err)
	}
	a := attempt{record: r, outcome: replog.Won}
	if b.Create(ctx, replog.Open(b, repository).Key(r.Number), body) != nil {
		a.outcome = replog.Lost
	}
	a.settle = func(context.Context) replog.Outcome { return a.outcome }
	return a
}

// schedule is one run of several writers on one log.
type schedule struct {
	memory  *buckettest.Memory
	append  appender
	mu      sync.Mutex
	results []attempt
	newest  uint64 // the greatest number that a writer reported or read
	errs    []error
}

func (s *schedule) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

func (s *schedule) seen() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

func (s *schedule) note(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, n)
}

// write reads the head and appends to it, several times.
func (s *schedule) write(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	b := jitter{s.memory, random}
	log := replog.Open(b, repository)
	var known *replog.Record
	for range 1 + random.IntN(3) {
		before := s.seen()
		head, err := log.Head(context.Background())
		if known != nil && random.IntN(2) == 0 {
			head, err = log.Latest(context.Background(), known)
		}
		if err != nil {
			if !fault.Is(err, fault.Unavailable) {
				s.fail("a read failed: %w", err)
			}
			continue
		}
		if head.Number < before {
			s.fail("the head is record %d after record %d was acknowledged", head.Number, before)
		}
		s.note(head.Number)
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(60))*time.Second)
		a := s.append(ctx, b, head.Next(replog.KindConfigure, "", time.Now()))
		cancel()
		if a.outcome == replog.Won {
			s.note(a.record.Number)
			known = a.record
		}
		s.mu.Lock()
		s.results = append(s.results, a)
		s.mu.Unlock()
	}
}

// run runs a schedule and checks all invariants of the log.
func run(seed uint64, f buckettest.Faults, do appender) error {
	random := rand.New(rand.NewPCG(seed, 2))
	s := &schedule{memory: buckettest.NewMemory(seed), append: do, newest: 1}
	txn := []byte(repository)
	txn[0] = 'b'
	if a := careful(context.Background(), s.memory, first(string(txn))); a.outcome != replog.Won {
		return fmt.Errorf("record 1: %v", a.outcome)
	}
	s.memory.SetFaults(f)
	var writers sync.WaitGroup
	for i := range 2 + random.IntN(2) {
		writers.Go(func() { s.write(seed*10 + uint64(i)) })
	}
	writers.Wait()
	if random.IntN(2) == 0 {
		s.memory.SetFaults(buckettest.Faults{})
	}
	s.settle()
	s.memory.SetFaults(buckettest.Faults{})
	s.memory.Settle()
	s.check()
	return errors.Join(s.errs...)
}

// settle decides all attempts.
func (s *schedule) settle() {
	var all sync.WaitGroup
	for i := range s.results {
		a := &s.results[i]
		if a.outcome == replog.Unknown {
			all.Go(func() { a.outcome = a.settle(context.Background()) })
		}
	}
	all.Wait()
}

// check compares the reported results with the log. The log is one chain.
func (s *schedule) check() {
	log := replog.Open(s.memory, repository)
	head, err := log.Head(context.Background())
	if err != nil {
		s.fail("head: %w", err)
		return
	}
	numbers := map[string]uint64{}
	for n, parent := uint64(1), ""; n <= head.Number; n++ {
		r, err := log.Get(context.Background(), n)
		if err != nil || r.Parent != parent || numbers[r.Txn] != 0 {
			s.fail("record %d: %+v, %w, want parent %q and a new txn", n, r, err, parent)
			return
		}
		numbers[r.Txn], parent = n, r.Txn
	}
	won := uint64(1)
	for _, a := range s.results {
		switch n := numbers[a.record.Txn]; {
		case a.outcome == replog.Won && n != a.record.Number:
			s.fail("record %d was reported as won, but the log does not have it", a.record.Number)
		case a.outcome == replog.Lost && n != 0:
			s.fail("record %d was reported as lost, but it is in the log", n)
		case a.outcome == replog.Unknown:
			s.fail("record %d is not settled", a.record.Number)
		case a.outcome == replog.Won:
			won++
		}
	}
	if won != head.Number {
		s.fail("%d records won, but the head is record %d", won, head.Number)
	}
}

// faults returns faults that every object storage may have.
func faults(seed uint64) buckettest.Faults {
	random := rand.New(rand.NewPCG(seed, 3))
	p := func() float64 { return float64(random.IntN(3)) * random.Float64() / 4 }
	return buckettest.Faults{LostRequests: p(), LostAnswers: p(), LateWrites: p(), DoubledWrites: p(), FailedReads: p(),
		Throttled: p()}
}

func schedules() uint64 {
	if testing.Short() {
		return 150
	}
	return 10_000
}

// Late, doubled and lost PUTs are harmless.
func TestSchedules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range schedules() {
			if err := run(seed, faults(seed), careful); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// A client that takes each answer that is not a success for a failure reports wrong results, and the test detects it.
func TestNaiveClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wrong := 0
		for seed := range uint64(50) {
			if run(seed, faults(seed), naive) != nil {
				wrong++
			}
		}
		if wrong < 5 {
			t.Errorf("%d of 50 schedules report a wrong result, want at least 5", wrong)
		}
	})
}

// A store that accepts two writers for one number breaks the chain, or an acknowledged record is gone.
func TestBrokenStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		detected := 0
		for seed := range uint64(50) {
			err := run(seed, buckettest.Faults{IgnoredCondition: true}, careful)
			if errors.Is(err, replog.ErrBrokenPromise) && fault.Is(err, fault.Corrupt) {
				detected++
			}
		}
		if detected < 5 {
			t.Errorf("the chain shows the fault in %d of 50 schedules, want at least 5", detected)
		}
	})
}
