package packsource

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// gitPack is one run of pack-objects.
type gitPack struct {
	child        *process.Process
	verification *pack.Verification // of the repository's packs; nil if there is none, or its result was reported
	opened       time.Time
	cancel       context.CancelFunc
	abandoned    func() error // the error of Open's context
	pauses       pauses
	held         []byte // bytes at the end that are not framed yet, at least as many as the pack's checksum has
	trailer      int    // length of the checksum
	total        int64  // bytes of the pack
	sent         time.Time
	usesPaths    bool   // the filter selects by paths
	temporary    string // scratch git directory of this run; "" for none
	progress     progressText
	info         Info
	ended        bool // Wait was called
}

// FilterTime is how long the selection of objects may take if the filter selects by paths. A few objects can have
// millions of paths, and Git visits each of them. A few patterns can have as many ways to match.
const FilterTime = 5 * time.Minute

// ErrFilterTime reports that the selection took more than FilterTime.
var ErrFilterTime = fault.New(fault.Exhausted,
	"the filter sparse:oid takes more than %s: use fewer patterns with stars, or blob:none", FilterTime)

// Size returns -1, because the size is unknown until the end.
func (p *gitPack) Size() int64 { return -1 }

func (p *gitPack) Info() Info {
	p.info.Result = Uncached
	p.info.Wait = p.child.Waited()
	p.info.Made.Source = SourceGit
	return p.info
}

// Send sends git's output to out, as packets.
func (p *gitPack) Send(ctx context.Context, out Output) error {
	defer context.AfterFunc(ctx, p.child.Kill)()
	f := NewFramer(writerFunc(func(packets []byte) (int, error) {
		p.sent = time.Now()
		n, err := out.Write(packets)
		p.info.Bytes += int64(n)
		return n, err
	}))
	defer f.Release()
	err := p.copy(f, out)
	if err != nil {
		p.child.Kill()
	}
	usage, exit := p.child.Wait()
	p.ended, p.info.Made.Write = true, usage.Wall
	gone := cmp.Or(ctx.Err(), p.abandoned())
	switch {
	case gone != nil:
		return fault.Wrap(fault.KindOf(gone), "the pack was abandoned", gone)
	case errors.Is(err, errGit):
		if exit != nil && !fault.Is(exit, fault.Cancelled) { // the error of git is more specific, unless Send killed git
			err = exit
		}
		return packError(err)
	case err != nil: // from out
		return err
	case exit != nil:
		return packError(exit)
	}
	if err := p.tell(out); err != nil {
		return err
	}
	if err := p.warn(ctx, out); err != nil {
		return err
	}
	if _, err := f.Write(p.held); err != nil { // held back until git has succeeded
		return err
	}
	return f.Flush()
}

// warn waits for the verification and warns the client if the repository's packs are damaged.
func (p *gitPack) warn(ctx context.Context, out Output) error {
	if p.verification == nil {
		return nil
	}
	patience := time.NewTimer(min(verifyPatience, max(leastVerifyPatience, time.Since(p.opened))))
	defer patience.Stop()
	select {
	case <-p.verification.Done():
	case <-patience.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.warnIfKnown(out)
}

// warnIfKnown warns the client once if the verification has found damage by now. The pack is still sent, because it may
// not contain the damaged object, and clients check every object.
func (p *gitPack) warnIfKnown(out Output) error {
	if p.verification == nil {
		return nil
	}
	select {
	case <-p.verification.Done():
	default:
		return nil
	}
	damage := p.verification.Damage()
	p.verification = nil
	if damage == nil {
		return nil
	}
	return out.Progress([]byte("warning: a pack of this repository is damaged on the server; tell its administrator\n"))
}

// errGit marks an error of git's output.
var errGit = errors.New("git pack-objects returned no valid pack")

// readSize is the maximum number of bytes of one read.
const readSize = 64 << 10

// copy frames git's output except for the bytes that it holds back. No client accepts a pack without its checksum. Its
// errors are errGit, or those of out.
func (p *gitPack) copy(f *Framer, out Output) error {
	p.held, p.sent = make([]byte, 0, p.trailer+readSize), time.Now()
	told, spoke, after := p.sent, p.sent, out.KeepAliveAfter()
	for {
		if p.total == 0 && p.usesPaths && time.Since(p.opened) > p.pauses.filter {
			return ErrFilterTime
		}
		idle, err := p.fill(f)
		if err == io.EOF {
			if p.total < int64(packHeader+p.trailer) {
				p.letEnd()
				return fmt.Errorf("%w: it ends after %d bytes", errGit, p.total)
			}
			return nil
		} else if err != nil {
			return err
		}
		if err := p.warnIfKnown(out); err != nil {
			return err
		}
		now := time.Now()
		if idle || now.Sub(told) >= p.pauses.flush {
			told = now
			if err := p.tell(out); err != nil {
				return err
			}
		}
		if idle || now.Sub(p.sent) >= p.pauses.flush {
			if err := f.Flush(); err != nil {
				return err
			}
		}
		if p.sent.After(spoke) {
			spoke = p.sent
		}
		if after > 0 && now.Sub(spoke) >= after { // progress does not count: a reader may drop it
			if err := out.KeepAlive(); err != nil {
				return err
			}
			spoke = now
		}
	}
}

// letEnd waits for the end of a git process that closed its output too early, because its exit status explains more.
// After a kill the status would be that of the kill.
func (p *gitPack) letEnd() {
	patience := time.NewTimer(p.pauses.linger)
	defer patience.Stop()
	select {
	case <-p.child.Done():
	case <-patience.C:
	}
}

// fill reads once, and frames all but the last bytes. idle reports that git wrote nothing for a while. An error is
// io.EOF or errGit, or that of the Framer.
func (p *gitPack) fill(f *Framer) (idle bool, err error) {
	pause, ended := p.pauses.flush, false
	select {
	case <-p.child.Done():
		pause, ended = p.pauses.linger, true
	default:
	}
	stdout, had := p.child.Stdout(), len(p.held)
	stdout.SetReadDeadline(time.Now().Add(pause))
	n, err := stdout.Read(p.held[had : had+readSize])
	p.held, p.total = p.held[:had+n], p.total+int64(n)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && !ended:
		return true, nil
	case err == io.EOF:
		return false, err
	case err != nil:
		return false, fmt.Errorf("%w: %w", errGit, err)
	case p.info.Objects == 0 && int64(len(p.held)) == p.total && p.total >= packHeader:
		if err := p.readHeader(); err != nil {
			return false, err
		}
	}
	if end := len(p.held) - p.trailer; end > 0 {
		if _, err := f.Write(p.held[:end]); err != nil {
			return false, err
		}
		p.held = p.held[:copy(p.held, p.held[end:])]
	}
	return false, nil
}

// readHeader reads the header of the pack.
func (p *gitPack) readHeader() error {
	version := binary.BigEndian.Uint32(p.held[4:])
	if string(p.held[:4]) != "PACK" || version != 2 && version != 3 {
		return fmt.Errorf("%w: it begins with %q", errGit, p.held[:packHeader])
	}
	p.info.Objects = binary.BigEndian.Uint32(p.held[8:])
	return nil
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (p *gitPack) tell(out Output) error {
	text := p.progress.take()
	if len(text) == 0 {
		return nil
	}
	return out.Progress(text)
}

func (p *gitPack) removeTemporary() {
	if p.temporary != "" {
		_ = os.RemoveAll(p.temporary) // if it fails, NewGit removes it at the next start
		p.temporary = ""
	}
}

// Close kills git if it still runs, and waits until it has ended.
func (p *gitPack) Close() error {
	p.cancel()
	if !p.ended {
		p.child.Kill()
		_, _ = p.child.Wait()
		p.ended = true
	}
	p.removeTemporary()
	return nil
}
