package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// ProbeOptions configure Probe.
type ProbeOptions struct {
	// Thorough adds many more races of creates and an upload in parts. It is for the set-up of a store. Without it, the
	// probe takes about a second on a local network.
	Thorough bool
}

// Report is the result of a probe.
type Report struct {
	Store  string        `json:"store"` // the URL
	Took   time.Duration `json:"took_nanoseconds"`
	Checks []Check       `json:"checks"`
}

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"` // what was found
	Remedy string `json:"remedy,omitempty"` // what to do if the check failed
}

// Connection is what the headers of answers tell about the way to the object storage.
type Connection struct {
	ClockSkew time.Duration // the clock of the storage minus ours, by the last answer
	Proxy     string        // the header by which a proxy or cache in between showed itself, or empty
}

const (
	probeWriters   = 32 // of one key at the same time
	probeRaces     = 32 // further keys, with raceWriters each
	raceWriters    = 4
	thoroughRaces  = 256               // misses 2 winners in 1 of 50 races once in 170 probes
	probeParallel  = 32                // requests
	probeReads     = 4                 // of a new object, since answers may come from several machines
	maxClockSkew   = 15 * time.Minute  // the limit of signatures (SigV4)
	leftoverAge    = 24 * time.Hour    // of objects of another probe that is not running any more
	thoroughUpload = 64<<20 + 1234_567 // bytes, in two parts
	otherStorage   = "use a storage that keeps this promise; the documentation lists those that were tested"
)

// Probe checks that a bucket keeps the promises that the store needs. It writes objects below probe/ and removes them.
//
// The error is nil if all checks passed. Its kind is Invalid if the storage breaks a promise. It is Unavailable if the
// storage cannot be reached, answers with errors, or denies access; the checks up to then are in the report.
func Probe(ctx context.Context, b Bucket, o ProbeOptions) (*Report, error) {
	begin := time.Now()
	p := &prober{b: b, prefix: "probe/" + rand.Text() + "/", races: probeRaces, report: &Report{}}
	if name, ok := b.(fmt.Stringer); ok {
		p.report.Store = name.String()
	}
	checks := []probeCheck{
		{"create", otherStorage, p.create},
		{"read after write", otherStorage, p.readAfterWrite},
		{"ranges", otherStorage, p.ranges},
		{"checksums", "use a storage that verifies x-amz-content-sha256", p.checksums},
		{"list", otherStorage, p.list},
		{"delete", "grant s3:DeleteObject, and remove a retention of objects from the bucket", p.delete},
		{"proxies", "connect to the storage without a proxy or cache: answers that are kept hide new pushes", p.proxies},
		{"clock", "set the clocks of this machine and of the storage (NTP)", p.clock},
	}
	if o.Thorough {
		p.races = thoroughRaces
		checks = append(checks, probeCheck{"upload in parts", otherStorage, p.parts})
	}
	err := p.run(ctx, checks)
	p.report.Took = time.Since(begin)
	return p.report, err
}

// prober is one run of a probe.
type prober struct {
	b      Bucket
	prefix string
	races  int
	report *Report
}

type probeCheck struct {
	name, remedy string
	run          func(context.Context) (detail string, err error)
}

// brokenPromise describes a promise that the storage does not keep.
type brokenPromise string

func (e brokenPromise) Error() string { return string(e) }

func broken(format string, args ...any) error { return brokenPromise(fmt.Sprintf(format, args...)) }

func (p *prober) run(ctx context.Context, checks []probeCheck) error {
	defer p.clean(ctx)
	var failed []string
	for _, c := range checks {
		if failed != nil && c.name == "upload in parts" {
			break // it takes long, and the storage is refused anyway
		}
		detail, err := c.run(ctx)
		if err == nil {
			p.report.Checks = append(p.report.Checks, Check{Name: c.name, OK: true, Detail: detail})
			continue
		}
		var promise brokenPromise
		if !errors.As(err, &promise) { // a request failed: the other checks would wait for the storage, too
			check := Check{Name: c.name, Detail: err.Error()}
			if e, ok := errors.AsType[*Error](err); ok {
				check.Detail, check.Remedy = fmt.Sprintf("%s %s: %v", e.Operation, e.Key, e.Err), e.Remedy
			}
			p.report.Checks = append(p.report.Checks, check)
			return fmt.Errorf("probe of the object storage %s: %s: %w", p.report.Store, c.name, err)
		}
		p.report.Checks = append(p.report.Checks, Check{Name: c.name, Detail: string(promise), Remedy: c.remedy})
		failed = append(failed, fmt.Sprintf("%s: %s (%s)", c.name, promise, c.remedy))
	}
	if failed != nil {
		return fault.New(fault.Invalid, "object storage %s does not keep the promises that the store needs: %s",
			p.report.Store, strings.Join(failed, "; "))
	}
	return nil
}

// clean removes the objects of this probe, and those that killed programs left behind, as far as possible.
func (p *prober) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var keys []string
	_ = Each(ctx, p.b, "probe/", func(info Info) error {
		if strings.HasPrefix(info.Key, p.prefix) || time.Since(info.Modified) > leftoverAge {
			keys = append(keys, info.Key)
		}
		return nil
	})
	_ = p.b.Delete(ctx, keys...)
}

// parallel calls f with the numbers below n, some at the same time.
func parallel(ctx context.Context, n int, f func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(probeParallel)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}

// create lets many writers create one key, and then a few writers each of many keys.
func (p *prober) create(ctx context.Context) (string, error) {
	if err := p.race(ctx, p.prefix+"race", probeWriters); err != nil {
		return "", err
	}
	err := parallel(ctx, p.races, func(ctx context.Context, i int) error {
		return p.race(ctx, fmt.Sprintf("%srace-%d", p.prefix, i), raceWriters)
	})
	return fmt.Sprintf("one winner in each of %d races", p.races+1), err
}

// race creates one key with several writers. At most one may succeed. If none did, because the answer was lost or was
// another error, the key has to hold the body of one of them.
func (p *prober) race(ctx context.Context, key string, writers int) error {
	results := make([]error, writers)
	var group errgroup.Group
	for i := range writers {
		group.Go(func() error {
			results[i] = p.b.Create(ctx, key, writerBody(i))
			return nil
		})
	}
	_ = group.Wait()
	winner, exists := -1, 0
	for i, err := range results {
		switch {
		case err == nil && winner >= 0:
			return broken("two of %d creates of %s succeeded: the storage ignores If-None-Match: * or has a race", writers, key)
		case err == nil:
			winner = i
		case errors.Is(err, ErrExists):
			exists++
		}
	}
	if winner < 0 && exists == 0 {
		return results[0]
	}
	body, _, err := p.b.Get(ctx, key, 1000)
	switch {
	case errors.Is(err, ErrNotFound):
		return broken("%s does not exist after %d creates of it", key, writers)
	case err != nil:
		return err
	case winner >= 0 && !bytes.Equal(body, writerBody(winner)):
		return broken("%s has the body %.40q, and the create of %q had succeeded", key, body, writerBody(winner))
	}
	if err := p.b.Create(ctx, key, writerBody(writers)); err == nil {
		return broken("a create of %s succeeded although it existed", key)
	}
	return nil
}

func writerBody(i int) []byte { return fmt.Appendf(nil, "writer %d of a probe", i) }

// readAfterWrite reads keys before and after they are created.
func (p *prober) readAfterWrite(ctx context.Context) (string, error) {
	const keys = 16
	return fmt.Sprintf("%d new objects are there at once", keys),
		parallel(ctx, keys, func(ctx context.Context, i int) error {
			key := fmt.Sprintf("%sread-%02d", p.prefix, i)
			if _, _, err := p.b.Get(ctx, key, 1000); !errors.Is(err, ErrNotFound) {
				if err == nil {
					err = broken("%s has a body although it was never written", key)
				}
				return err
			}
			if err := p.b.Create(ctx, key, writerBody(i)); err != nil {
				return err
			}
			return parallel(ctx, probeReads, func(ctx context.Context, _ int) error {
				body, _, err := p.b.Get(ctx, key, 1000)
				switch {
				case errors.Is(err, ErrNotFound):
					return broken("%s does not exist for a reader after its create had succeeded", key)
				case err == nil && !bytes.Equal(body, writerBody(i)):
					return broken("%s was written as %q and read as %q", key, writerBody(i), body)
				}
				return err
			})
		})
}

// ranges reads parts of an object.
func (p *prober) ranges(ctx context.Context) (string, error) {
	key, content := p.prefix+"ranges", make([]byte, 300_000)
	_, _ = rand.Read(content)
	sum := sha256.Sum256(content)
	for range 2 { // a second upload, like one that was late, changes nothing
		if err := p.b.Put(ctx, key, bytes.NewReader(content), int64(len(content)), sum); err != nil {
			return "", err
		}
	}
	for _, r := range [][2]int{{0, 300_000}, {0, 1000}, {65_535, 131_073}, {299_999, 1}, {150_000, -1}, {0, -1}} {
		want := content[r[0]:]
		if r[1] >= 0 {
			want = want[:r[1]]
		}
		if err := p.compare(ctx, key, int64(r[0]), int64(r[1]), want); err != nil {
			return "", err
		}
	}
	return "", nil
}

// compare reads a range and compares it.
func (p *prober) compare(ctx context.Context, key string, offset, length int64, want []byte) error {
	r, _, err := p.b.Open(ctx, key, offset, length)
	if err == nil {
		defer r.Close()
		var got []byte
		if got, err = io.ReadAll(io.LimitReader(r, int64(len(want))+1)); err == nil && !bytes.Equal(got, want) {
			return broken("%d bytes of %s from %d were read as %d other bytes", len(want), key, offset, len(got))
		}
	}
	if errors.Is(err, ErrNotFound) || fault.Is(err, fault.Corrupt) {
		return broken("%d bytes of %s from %d: %v", len(want), key, offset, err)
	}
	return err
}

// checksums uploads an object that does not match its checksum.
func (p *prober) checksums(ctx context.Context) (string, error) {
	key, content := p.prefix+"checksum", []byte("damaged on the way")
	err := p.b.Put(ctx, key, bytes.NewReader(content), int64(len(content)), sha256.Sum256([]byte("as it was sent")))
	switch {
	case err == nil:
		return "", broken("%s was stored although it did not match its checksum", key)
	case fault.Is(err, fault.Unavailable):
		return "", err
	}
	if _, _, err := p.b.Get(ctx, key, 1000); err == nil {
		return "", broken("%s was refused because it did not match its checksum, and exists", key)
	} else if !errors.Is(err, ErrNotFound) {
		return "", err
	}
	return "damaged uploads are refused", nil
}

// parts uploads a file that is large enough for an upload in parts, and reads it.
func (p *prober) parts(ctx context.Context) (string, error) {
	key, file := p.prefix+"parts", patternFile{}
	hash := sha256.New()
	_, _ = io.Copy(hash, io.NewSectionReader(file, 0, thoroughUpload)) // neither fails
	if err := p.b.Put(ctx, key, file, thoroughUpload, [32]byte(hash.Sum(nil))); err != nil {
		return "", err
	}
	r, info, err := p.b.Open(ctx, key, 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	got := sha256.New()
	if _, err := io.Copy(got, r); err != nil {
		return "", err
	}
	if !bytes.Equal(got.Sum(nil), hash.Sum(nil)) {
		return "", broken("%s of %d bytes was uploaded in parts, and %d other bytes were read", key, int64(thoroughUpload),
			info.Size)
	}
	return "", nil
}

// patternFile is an endless file whose blocks of 8 bytes all differ.
type patternFile struct{}

func (patternFile) ReadAt(b []byte, offset int64) (int, error) {
	for i := range b {
		at := offset + int64(i)
		b[i] = byte(uint64(at/8) * 0x9e3779b97f4a7c15 >> (at % 8 * 8))
	}
	return len(b), nil
}

// list compares lists with the objects of the other checks.
func (p *prober) list(ctx context.Context) (string, error) {
	const prefix = "read-"
	var want []string
	for i := range 16 {
		want = append(want, fmt.Sprintf("%s%s%02d", p.prefix, prefix, i))
	}
	for _, test := range []struct {
		after string
		limit int
		want  []string
	}{{"", 1000, want}, {"", 1, want[:1]}, {want[4], 3, want[5:8]}, {want[15], 10, nil}} {
		list, err := p.b.List(ctx, p.prefix+prefix, test.after, test.limit)
		if err != nil {
			return "", err
		}
		var got []string
		for _, info := range list {
			got = append(got, info.Key)
		}
		if !slices.Equal(got, test.want) {
			return "", broken("the list of %d objects after %q is %q, and should be %q", test.limit, test.after, got, test.want)
		}
	}
	return "complete and in order", nil
}

// delete removes an object, which then is missing and can be created again.
func (p *prober) delete(ctx context.Context) (string, error) {
	key := p.prefix + "race"
	if err := p.b.Delete(ctx, key, p.prefix+"missing"); err != nil {
		return "", err
	}
	if _, _, err := p.b.Get(ctx, key, 1000); err == nil {
		return "", broken("%s exists after its deletion", key)
	} else if !errors.Is(err, ErrNotFound) {
		return "", err
	}
	return "", nil
}

func (p *prober) connection() (Connection, bool) {
	c, ok := p.b.(interface{ Connection() Connection })
	if !ok {
		return Connection{}, false
	}
	return c.Connection(), true
}

func (p *prober) proxies(context.Context) (string, error) {
	if c, ok := p.connection(); ok && c.Proxy != "" {
		return "", broken("answers came through a proxy or cache, which added %q", c.Proxy)
	}
	return "", nil
}

func (p *prober) clock(context.Context) (string, error) {
	c, ok := p.connection()
	skew := c.ClockSkew.Round(time.Second)
	switch {
	case skew.Abs() >= maxClockSkew:
		return "", broken("the clock of the storage differs by %v from that of this machine; requests need clocks within %v",
			skew, maxClockSkew)
	case !ok:
		return "not checked", nil
	}
	return fmt.Sprintf("differs by %v", skew), nil
}
