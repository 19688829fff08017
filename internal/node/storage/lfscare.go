package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// LFSCare configures how LFS garbage is collected, and what the node does for its LFS objects without a request.
type LFSCare struct {
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
	// careDelay is the time from the start of a node to its first collection or scrub.
	careDelay = 5 * time.Minute
	// careRetry is the time until the next attempt after a failure.
	careRetry = time.Hour
	// rememberInterval is how often the progress of a scrub is written to disk.
	rememberInterval = time.Minute
)

// lfsCarer collects garbage and scrubs, each in one goroutine. With an object store it only scrubs the local copies.
type lfsCarer struct {
	node *Node
	LFSCare
	backgroundTask
	started time.Time

	mu    sync.Mutex
	state careState
}

// careState is the content of the file that remembers the progress over restarts.
type careState struct {
	Collected time.Time `json:"collected"` // last collection of garbage
	Scrub     time.Time `json:"scrub"`     // begin of the last scrub
	// After is the last object of the pool that the scrub has verified, or zero digits. Empty: the scrub has ended.
	After string `json:"after,omitempty"`
}

func newLFSCarer(n *Node, care LFSCare) *lfsCarer {
	care.ScrubRate = cmp.Or(care.ScrubRate, 32<<20)
	c := &lfsCarer{node: n, LFSCare: care, started: time.Now()}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	text, err := os.ReadFile(c.File)
	if err == nil {
		err = json.Unmarshal(text, &c.state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.state = careState{}
		n.log.Warn("cannot read when LFS objects were last verified", "error", err)
	}
	c.setDue()
	if !n.places.KeepsCopies() {
		c.Go(func() { c.repeat(c.nextCollection, c.collect) })
	}
	if c.ScrubInterval > 0 {
		c.Go(func() { c.repeat(c.nextScrub, c.scrub) })
	}
	return c
}

func (c *lfsCarer) close() {
	c.cancel()
	c.Wait()
}

// change changes the state, and writes it to disk.
func (c *lfsCarer) change(change func(s *careState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.state)
	c.setDue()
	text, err := json.Marshal(c.state)
	if err == nil {
		err = disk.ReplaceFile(c.File, append(text, '\n'))
	}
	if err != nil {
		c.node.log.Warn("cannot remember when LFS objects were last verified", "error", err)
	}
}

// setDue sets the metric of when collections and scrubs have to end: an interval after they had to begin. The caller
// holds c.mu, or nothing else uses c yet.
func (c *lfsCarer) setDue() {
	set := func(task string, last time.Time, interval time.Duration) {
		if last.IsZero() {
			last = c.started.Add(-interval)
		}
		c.node.metrics.lfsDue.WithLabelValues(task).Set(float64(last.Add(2 * interval).Unix()))
	}
	if !c.node.places.KeepsCopies() {
		set("gc", c.state.Collected, collectInterval)
	}
	if c.ScrubInterval > 0 {
		last := c.state.Scrub
		if c.state.After != "" { // it has not ended
			last = last.Add(-c.ScrubInterval)
		}
		set("scrub", last, c.ScrubInterval)
	}
}

func (c *lfsCarer) get() careState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// repeat calls work whenever it is due, until the node closes.
func (c *lfsCarer) repeat(due func() time.Time, work func() error) {
	timer := time.NewTimer(max(time.Until(due()), careDelay))
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
		wait := careRetry
		if err := work(); err == nil {
			wait = max(time.Until(due()), time.Second)
		} else if c.ctx.Err() == nil {
			c.node.log.Warn("the care for LFS objects failed", "error", err)
		}
		timer.Reset(wait)
	}
}

func (c *lfsCarer) nextCollection() time.Time { return c.get().Collected.Add(collectInterval) }

func (c *lfsCarer) collect() error {
	begin := time.Now()
	result, err := c.node.LFSCollect(c.ctx, LFSCollectOptions{})
	if err != nil {
		return err
	}
	c.node.log.Info("collected LFS garbage", "objects", result.Removed.Objects, "bytes", result.Removed.Bytes,
		"freed", result.Freed.Bytes, "seconds", time.Since(begin).Seconds())
	c.change(func(s *careState) { s.Collected = begin })
	return nil
}

// nextScrub is now if a scrub has not ended.
func (c *lfsCarer) nextScrub() time.Time {
	s := c.get()
	if s.After != "" {
		return time.Time{}
	}
	return s.Scrub.Add(c.ScrubInterval)
}

// scrub verifies all objects, or the remaining ones of a scrub that was interrupted.
func (c *lfsCarer) scrub() error {
	begin, s := time.Now(), c.get()
	after, err := lfs.ParseOID(s.After)
	if err != nil {
		c.change(func(s *careState) { s.Scrub, s.After = begin, after.String() })
	}
	written := begin
	v := verifier{node: c.node, after: after, limiter: objects.NewLimiter(c.ScrubRate), done: func(id lfs.OID) {
		if time.Since(written) > rememberInterval {
			written = time.Now()
			c.change(func(s *careState) { s.After = id.String() })
		}
	}}
	if err := v.all(c.ctx); err != nil {
		return err
	}
	c.node.log.Info("verified LFS objects", "objects", v.result.Verified.Objects, "bytes", v.result.Verified.Bytes,
		"damaged", len(v.result.Damaged), "seconds", time.Since(begin).Seconds())
	c.change(func(s *careState) { s.After = "" })
	return nil
}
