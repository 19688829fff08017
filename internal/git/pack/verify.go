package pack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

const (
	verifyBlock = 1 << 20   // bytes read at a time
	verifyBurst = 256 << 20 // bytes after which a verification pauses as long as it reads
	maxVerdicts = 1 << 16   // maximum number of kept verdicts
)

// Verifier finds damaged packs. It compares each pack and each index with the checksum at its end (gitformat-pack(5)),
// once for each state of the files. `git pack-objects` copies most objects without checking a checksum, so only clients
// would notice damage. It is safe for concurrent use.
type Verifier struct {
	log     *slog.Logger
	results *prometheus.CounterVec
	small   chan struct{} // held while a pack of up to verifyBurst bytes is read
	large   chan struct{} // held while a larger one is read, which may take minutes
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	known  map[string]*verdict // by the pack's path
}

// verdict is the result for one state of a pack and its index.
type verdict struct {
	pack, index disk.ID
	done        chan struct{}
	damage      *Damage // valid after done is closed; nil: none
	gaveUp      bool    // likewise; the files could not be read, or the Verifier was closed
}

// NewVerifier creates a Verifier, which the caller has to close. r, which may be nil, registers its metric.
func NewVerifier(log *slog.Logger, r prometheus.Registerer) *Verifier {
	results := promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: "packhorse_packs_verified_total",
		Help: "Packs compared with their checksums, by result: ok, damaged, or failed if they could not be read."},
		[]string{"result"})
	for _, result := range []string{"ok", "damaged", "failed"} {
		results.WithLabelValues(result)
	}
	v := &Verifier{log: log, results: results, small: make(chan struct{}, 1), large: make(chan struct{}, 1),
		known: make(map[string]*verdict)}
	v.ctx, v.stop = context.WithCancel(context.Background())
	return v
}

// Close ends all verifications and waits for them.
func (v *Verifier) Close() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.stop()
	v.running.Wait()
	return nil
}

// Forget drops all verdicts, so that packs are read again.
func (v *Verifier) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.known, func(_ string, known *verdict) bool { return known.isDone() })
}

// Damage is the error of a damaged pack.
type Damage struct{ Path string } // of the pack or index

func (d *Damage) Error() string { return d.Path + ": damaged: its checksum is wrong" }

// Verification is one verification of the packs of a repository.
type Verification struct {
	done   chan struct{}
	damage *Damage
}

// Done returns a channel that is closed when the result is known.
func (x *Verification) Done() <-chan struct{} { return x.done }

// Damage returns the first damage found; nil if there is none or if the packs could not be read. Call it after Done is
// closed.
func (x *Verification) Damage() *Damage { return x.damage }

// Begin starts a verification of the packs of a store and its alternates and returns at once. Packs whose files have
// not changed since they were read are not read again. If damage is found, damaged is called once.
func (v *Verifier) Begin(s *Store, damaged func(*Damage)) *Verification {
	x := &Verification{done: make(chan struct{})}
	if err := s.Refresh(); err != nil {
		v.log.Warn("cannot list the packs to verify", "directory", s.dir, "error", err)
	}
	var packs []string
	for _, d := range s.snap.Load().dirs {
		for _, p := range d.all {
			packs = append(packs, p.path+".pack")
		}
	}
	slices.Sort(packs)
	var all []*verdict
	for _, path := range packs {
		if known := v.verdictOf(path, s.format); known != nil {
			all = append(all, known)
		}
	}
	end := func() {
		for _, known := range all {
			<-known.done
			if known.damage != nil && x.damage == nil {
				x.damage = known.damage
			}
		}
		if x.damage != nil {
			damaged(x.damage)
		}
		close(x.done)
	}
	if !slices.ContainsFunc(all, func(known *verdict) bool { return !known.isDone() }) {
		end()
		return x
	}
	if !v.begin(end) {
		close(x.done)
	}
	return x
}

func (d *verdict) isDone() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// isOf reports whether the pack and its index are unchanged.
func (d *verdict) isOf(path string) bool {
	packID, err := disk.Stat(path)
	indexID, indexErr := disk.Stat(indexOf(path))
	return err == nil && indexErr == nil && packID == d.pack && indexID == d.index
}

// begin runs do until it ends, unless the Verifier is closed. Close waits for it.
func (v *Verifier) begin(do func()) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	v.running.Go(do)
	return true
}

// verdictOf returns the verdict on the current state of a pack. If there is none, it starts to read the pack. It is nil
// if the pack does not exist any more.
func (v *Verifier) verdictOf(path string, format git.ObjectFormat) *verdict {
	packID, err := disk.Stat(path)
	indexID, indexErr := disk.Stat(indexOf(path))
	if err != nil || indexErr != nil || packID == (disk.ID{}) || indexID == (disk.ID{}) {
		return nil // it was replaced, or is incomplete and not used by git
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.known[path]; known != nil && known.pack == packID && known.index == indexID && !(known.isDone() &&
		known.gaveUp) {
		return known
	}
	if v.closed {
		return nil
	}
	if len(v.known) >= maxVerdicts {
		clear(v.known)
	}
	made := &verdict{pack: packID, index: indexID, done: make(chan struct{})}
	v.known[path] = made
	v.running.Go(func() { v.verifyOnce(path, format, made) })
	return made
}

func indexOf(pack string) string { return strings.TrimSuffix(pack, ".pack") + ".idx" }

// verifyOnce reads a pack and its index.
func (v *Verifier) verifyOnce(path string, format git.ObjectFormat, d *verdict) {
	defer close(d.done)
	reading := v.small
	if d.pack.Size > verifyBurst {
		reading = v.large
	}
	select {
	case reading <- struct{}{}:
		defer func() { <-reading }()
	case <-v.ctx.Done():
		d.gaveUp = true
		return
	}
	err := v.verify(path, format)
	damage, bad := errors.AsType[*Damage](err)
	if !d.isOf(path) { // one of the files was changed or replaced
		d.gaveUp = true
		return
	}
	switch {
	case err == nil:
		v.results.WithLabelValues("ok").Inc()
	case bad:
		d.damage = damage
		v.results.WithLabelValues("damaged").Inc()
		v.log.Error("damaged pack", "path", damage.Path, "action", "restore the file, or run git fsck in the repository")
	default:
		d.gaveUp = true
		if v.ctx.Err() == nil {
			v.results.WithLabelValues("failed").Inc()
			v.log.Warn("cannot verify a pack", "path", path, "error", err)
		}
	}
}

// verify reads a pack and its index. The error is a *Damage if a checksum does not match.
func (v *Verifier) verify(path string, format git.ObjectFormat) error {
	index, err := v.sums(indexOf(path), format)
	if err != nil {
		return err
	}
	pack, err := v.sums(path, format)
	if err != nil {
		return err
	}
	hash := format.Size()
	switch {
	case !index.whole || len(index.tail) < 2*hash:
		return &Damage{Path: indexOf(path)}
	case pack.whole && bytes.Equal(index.tail[:hash], pack.tail[len(pack.tail)-hash:]):
		return nil
	}
	return &Damage{Path: path}
}

// trailer is the end of a file.
type trailer struct {
	whole bool   // the last checksum is that of all bytes before it
	tail  []byte // the last two checksums, or less if the file is shorter
}

// sums reads a file and compares it with its last bytes.
func (v *Verifier) sums(path string, format git.ObjectFormat) (trailer, error) {
	f, err := disk.Open(path)
	if err != nil {
		return trailer{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return trailer{}, err
	}
	hash := int64(format.Size())
	if info.Size() < 2*hash {
		return trailer{}, &Damage{Path: path}
	}
	h := format.New()
	if err := v.pass(h, f, info.Size()-hash); err != nil {
		return trailer{}, err
	}
	tail := make([]byte, 2*hash)
	if _, err := f.ReadAt(tail, info.Size()-2*hash); err != nil {
		return trailer{}, err
	}
	return trailer{bytes.Equal(h.Sum(nil), tail[hash:]), tail}, nil
}

// pass writes a file up to end to w. After verifyBurst bytes it pauses as long as it reads.
func (v *Verifier) pass(w io.Writer, f *os.File, end int64) error {
	block := make([]byte, min(verifyBlock, end))
	for at := int64(0); at < end; {
		start := time.Now()
		n, err := f.ReadAt(block[:min(int64(len(block)), end-at)], at)
		w.Write(block[:n])
		at += int64(n)
		if err == io.EOF && at < end {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && at < end {
			return err
		}
		if at > verifyBurst {
			time.Sleep(time.Since(start))
		}
		if err := v.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
