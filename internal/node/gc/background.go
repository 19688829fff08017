package gc

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// Schedule configures how LFS garbage is collected, and what happens to LFS objects without a request.
type Schedule struct {
	// File remembers the progress over restarts. Empty means that nothing is done without a request.
	File string
	// Grace is the time after the upload of an object during which a push may still name it. Zero means 14 days. A
	// negative value means that repositories keep all objects.
	Grace time.Duration
	// ScrubInterval is the time in which all objects are read and verified. Zero means that they are not.
	ScrubInterval time.Duration
	// ScrubRate is the maximum number of bytes that are read a second for that. Zero means 32 MiB.
	ScrubRate int64
}

const (
	// collectInterval is the time between two collections of garbage.
	collectInterval = 24 * time.Hour
	// upkeepDelay is the time from the start of a node to its first collection or scrub.
	upkeepDelay = 5 * time.Minute
	// upkeepRetry is the time until the next attempt after a failure.
	upkeepRetry = time.Hour
	// rememberInterval is how often the progress of a scrub is written to disk.
	rememberInterval = time.Minute
)

// state is the content of the file that remembers the progress over restarts.
type state struct {
	Collected time.Time `json:"collected"` // last collection of garbage
	Scrub     time.Time `json:"scrub"`     // begin of the last scrub
	// After is the last object of the pool that the scrub has verified, or zero digits. Empty: the scrub has ended.
	After string `json:"after,omitempty"`
}

// start starts the background work. Of the copies of objects in an object store, it verifies those that are here.
func (k *Keeper) start() {
	text, err := os.ReadFile(k.File)
	if err == nil {
		err = json.Unmarshal(text, &k.state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.state = state{}
		k.Log.Warn("cannot read when LFS objects were last verified", "error", err)
	}
	k.setDue()
	if !k.Copies {
		k.running.Go(func() { k.repeat(k.nextCollection, k.collectDaily) })
	}
	if k.ScrubInterval > 0 {
		k.running.Go(func() { k.repeat(k.nextScrub, k.scrub) })
	}
}

// change changes the state, and writes it to disk.
func (k *Keeper) change(change func(s *state)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.state)
	k.setDue()
	text, err := json.Marshal(k.state)
	if err == nil {
		err = disk.ReplaceFile(k.File, append(text, '\n'))
	}
	if err != nil {
		k.Log.Warn("cannot remember when LFS objects were last verified", "error", err)
	}
}

// setDue sets the metric of when collections and scrubs have to end: an interval after they had to begin. The caller
// holds k.mu, or nothing else uses k yet.
func (k *Keeper) setDue() {
	set := func(task string, last time.Time, interval time.Duration) {
		if last.IsZero() {
			last = k.started.Add(-interval)
		}
		k.due.WithLabelValues(task).Set(float64(last.Add(2 * interval).Unix()))
	}
	if !k.Copies {
		set("gc", k.state.Collected, collectInterval)
	}
	if k.ScrubInterval > 0 {
		last := k.state.Scrub
		if k.state.After != "" { // it has not ended
			last = last.Add(-k.ScrubInterval)
		}
		set("scrub", last, k.ScrubInterval)
	}
}

func (k *Keeper) get() state {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// repeat calls work whenever it is due, until Close.
func (k *Keeper) repeat(due func() time.Time, work func() error) {
	timer := time.NewTimer(max(time.Until(due()), upkeepDelay))
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-timer.C:
		}
		wait := upkeepRetry
		if err := work(); err == nil {
			wait = max(time.Until(due()), time.Second)
		} else if k.ctx.Err() == nil {
			k.Log.Warn("the upkeep of LFS objects failed", "error", err)
		}
		timer.Reset(wait)
	}
}

func (k *Keeper) nextCollection() time.Time { return k.get().Collected.Add(collectInterval) }

func (k *Keeper) collectDaily() error {
	begin := time.Now()
	result, err := k.Collect(k.ctx, CollectOptions{})
	if err != nil {
		return err
	}
	k.Log.Info("collected LFS garbage", "objects", result.Removed.Objects, "bytes", result.Removed.Bytes,
		"freed", result.Freed.Bytes, "seconds", time.Since(begin).Seconds())
	k.change(func(s *state) { s.Collected = begin })
	return nil
}

// nextScrub is now if a scrub has not ended.
func (k *Keeper) nextScrub() time.Time {
	s := k.get()
	if s.After != "" {
		return time.Time{}
	}
	return s.Scrub.Add(k.ScrubInterval)
}

// scrub verifies all objects, or the remaining ones of a scrub that was interrupted.
func (k *Keeper) scrub() error {
	begin, s := time.Now(), k.get()
	after, err := lfs.ParseOID(s.After)
	if err != nil {
		k.change(func(s *state) { s.Scrub, s.After = begin, after.String() })
	}
	written := begin
	v := verifier{Keeper: k, after: after, limiter: objects.NewLimiter(k.ScrubRate), done: func(id lfs.OID) {
		if time.Since(written) > rememberInterval {
			written = time.Now()
			k.change(func(s *state) { s.After = id.String() })
		}
	}}
	if err := v.all(k.ctx); err != nil {
		return err
	}
	k.Log.Info("verified LFS objects", "objects", v.result.Verified.Objects, "bytes", v.result.Verified.Bytes,
		"damaged", len(v.result.Damaged), "seconds", time.Since(begin).Seconds())
	k.change(func(s *state) { s.After = "" })
	return nil
}
