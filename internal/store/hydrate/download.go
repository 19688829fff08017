package hydrate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

const (
	partBytes     = 16 << 20 // of one request
	parallelParts = 8        // requests of one hydration at the same time
	maxParts      = 32       // requests of all hydrations at the same time
	maxAhead      = 256      // parts of one file that may arrive before the checksum has them
	bufferBytes   = 256 << 10

	stallTimeout = 30 * time.Second // without a byte, until the request is repeated
	maxFailures  = 8                // requests in a row without a byte
	maxFull      = 2                // the same, on a full disk
)

// backoff has the pauses after requests without a byte.
var backoff = retry.Policy{First: 100 * time.Millisecond, Max: 5 * time.Second}

// downloader downloads files that belong together.
type downloader struct {
	cache *Cache
	count func(n int64) // is called for n bytes that were written; n is negative if they are written again
	parts chan struct{} // an element for each running request
}

func newDownloader(c *Cache, count func(n int64)) *downloader {
	return &downloader{cache: c, count: count, parts: make(chan struct{}, parallelParts)}
}

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// file downloads an object to a new file and verifies it. An object that differs is downloaded once more: it may have
// been damaged on the way.
func (d *downloader) file(ctx context.Context, path, key string, want replog.File) error {
	for last := false; ; last = true {
		sum, err := d.fetch(ctx, path, key, want.Bytes)
		if err != nil || sum == want.SHA256 {
			return err
		}
		if last {
			return damagedError(key, "its SHA-256 is %s and should be %s", sum, want.SHA256)
		}
		d.count(-want.Bytes)
	}
}

// fetch downloads an object in parts and returns its checksum. The parts arrive in any order. They are read again in
// the order of the file for the checksum, from memory, while later parts arrive.
func (d *downloader) fetch(ctx context.Context, path, key string, size int64) (sum replog.Sum, err error) {
	var f *os.File
	err = d.cache.retryFull(func() error {
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o444)
		return err
	})
	if err != nil {
		return sum, diskError(err)
	}
	defer func() { err = cmp.Or(err, f.Close()) }()
	arrived := make(chan chan struct{}, maxAhead) // for each part, in order: a channel that is closed once it arrived
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		hash, offset := sha256.New(), int64(0)
		for part := range arrived {
			select {
			case <-part:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := readInto(ctx, hash, f, offset, min(partBytes, size-offset), ignoreCount); err != nil {
				return diskError(err)
			}
			offset += partBytes
		}
		hash.Sum(sum[:0])
		return ctx.Err() // not nil if parts were left out
	})
	for offset := int64(0); offset < size && ctx.Err() == nil; offset += partBytes {
		part := make(chan struct{})
		select {
		case arrived <- part:
		case <-ctx.Done():
			continue
		}
		select {
		case d.parts <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		group.Go(func() error {
			defer func() { <-d.parts }()
			if err := d.part(ctx, f, key, offset, min(offset+partBytes, size), size); err != nil {
				return err
			}
			close(part)
			return nil
		})
	}
	close(arrived)
	err = group.Wait()
	return sum, err
}

// part downloads the bytes of an object between two offsets. A failed request is repeated from where it ended.
func (d *downloader) part(ctx context.Context, f *os.File, key string, offset, end, size int64) error {
	for failures := 0; offset < end; {
		n, err := d.request(ctx, f, key, offset, end-offset, size)
		if offset += n; n > 0 {
			failures = 0
		}
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, bucket.ErrNotFound):
			return damagedError(key, "%w", err)
		case disk.IsFull(err) && d.cache.evictOne():
			continue
		case disk.IsFull(err) && failures < maxFull: // another part may have evicted a repository
		case isLocal(err):
			return diskError(err)
		case fault.Is(err, fault.Corrupt) || errors.Is(err, bucket.ErrDenied):
			return err
		}
		if failures++; failures == maxFailures {
			return fault.Wrap(fault.Unavailable, "the store does not answer", fmt.Errorf("%w (%d times)", err, failures))
		}
		if err := backoff.Wait(ctx, failures, min(fault.RetryAfter(err), backoff.Max)); err != nil {
			return err
		}
	}
	return nil
}

// request makes one request for a range of an object, and writes the bytes that arrive to the same range of the file.
func (d *downloader) request(ctx context.Context, f *os.File, key string, offset, length, size int64) (n int64,
	err error) {
	select {
	case d.cache.parts <- struct{}{}:
		defer func() { <-d.cache.parts }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallTimeout, func() {
		cancel(fmt.Errorf("object %s: no data for %s", key, stallTimeout))
	})
	defer stall.Stop()
	body, info, err := d.cache.options.Bucket.Open(ctx, key, offset, length)
	if err != nil {
		return 0, cmp.Or(context.Cause(ctx), err)
	}
	defer body.Close()
	if info.Size != size {
		return 0, damagedError(key, "it has %d bytes and should have %d", info.Size, size)
	}
	buffer := buffers.Get().(*[bufferBytes]byte)
	defer buffers.Put(buffer)
	for n < length {
		m, err := body.Read(buffer[:min(bufferBytes, length-n)])
		if m > 0 {
			stall.Reset(stallTimeout)
			if _, err := f.WriteAt(buffer[:m], offset+n); err != nil {
				return n, err
			}
			n += int64(m)
			d.count(int64(m))
		}
		switch {
		case n == length:
		case errors.Is(err, io.EOF):
			return n, fmt.Errorf("object %s: %w after %d bytes", key, io.ErrUnexpectedEOF, offset+n)
		case err != nil:
			return n, cmp.Or(context.Cause(ctx), err)
		}
	}
	return n, nil
}

// ignoreCount ignores a number of bytes.
func ignoreCount(int64) {}

// readInto copies a range of a file to w, and calls count for the bytes that were read.
func readInto(ctx context.Context, w io.Writer, f *os.File, offset, length int64, count func(n int64)) error {
	buffer := buffers.Get().(*[bufferBytes]byte)
	defer buffers.Put(buffer)
	for end := offset + length; offset < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buffer[:min(bufferBytes, end-offset)], offset)
		if n == 0 && err != nil {
			return err
		}
		_, _ = w.Write(buffer[:n]) // a hash
		count(int64(n))
		offset += int64(n)
	}
	return nil
}

// verifyFile compares a file with its size and checksum. It calls count for the bytes that were read.
func verifyFile(ctx context.Context, path string, want replog.File, count func(n int64)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != want.Bytes {
		return fmt.Errorf("it has %d bytes and should have %d", info.Size(), want.Bytes)
	}
	hash := sha256.New()
	if err := readInto(ctx, hash, f, 0, want.Bytes, count); err != nil {
		return err
	}
	if sum := replog.Sum(hash.Sum(nil)); sum != want.SHA256 {
		return fmt.Errorf("its SHA-256 is %s and should be %s", sum, want.SHA256)
	}
	return nil
}
