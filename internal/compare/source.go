package compare

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Bounds of what is read.
const (
	maxLine    = 1 << 20   // longer lines are malformed, and skipped
	sniffBytes = 256 << 10 // of a log's beginning, to find out its format
	maxWindow  = 128 << 20 // of zstd: what its own program takes without being asked
)

// Stdin is the name of standard input.
const Stdin = "-"

// expand makes files of what was named: a name, "-", or a pattern such as access.log*.
func expand(names []string) ([]string, error) {
	var files []string
	for _, name := range names {
		if name == Stdin || !strings.ContainsAny(name, "*?[") {
			files = append(files, name)
			continue
		}
		if _, err := os.Lstat(name); err == nil {
			files = append(files, name)
			continue
		}
		found, err := filepath.Glob(name)
		if err != nil {
			return nil, fmt.Errorf("the pattern %q: %w", name, err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no file is named like %q", name)
		}
		files = append(files, found...)
	}
	return files, nil
}

// source is one log that is read: a file, perhaps compressed.
type source struct {
	name   string
	size   int64 // in bytes as stored; 0: not known
	raw    *counter
	text   *bufio.Reader // unpacked
	format Format
	close  []func()
}

// counter counts what was read. One goroutine reads; others may ask how much.
type counter struct {
	from io.Reader
	n    atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// open opens a log and unpacks it if it is compressed, which its first bytes tell, and not its name.
func open(name string, stdin io.Reader) (*source, error) {
	s := &source{name: name}
	if name == Stdin {
		if stdin == nil {
			return nil, errors.New("there is no standard input")
		}
		s.raw = &counter{from: stdin}
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		s.close = append(s.close, func() { f.Close() })
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory; name its files, or a pattern like '%s'", name,
				filepath.Join(name, "access.log*"))
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		if info.Mode().IsRegular() {
			s.size = info.Size()
		}
		s.raw = &counter{from: f}
	}
	if err := s.unpack(bufio.NewReaderSize(s.raw, 64<<10)); err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Close closes the log.
func (s *source) Close() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
	s.close = nil
}

func (s *source) unpack(packed *bufio.Reader) error {
	head, err := packed.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var text io.Reader = packed
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(packed)
		if err != nil {
			return err
		}
		z.Multistream(false)
		text = &members{packed, z}
	case isZstd(head):
		z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return err
		}
		s.close = append(s.close, z.Close)
		text = z
	case bytes.HasPrefix(head, []byte("\xfd7zXZ")):
		return errors.New("it is packed with xz, which is not read here; use xz -dc FILE | packhorse-bench compare - OTHER")
	case bytes.HasPrefix(head, []byte("BZh")):
		return errors.New("it is packed with bzip2, which is not read here; use bzip2 -dc FILE | packhorse-bench compare " +
			"- OTHER")
	}
	s.text = bufio.NewReaderSize(text, sniffBytes)
	return nil
}

// members reads the members of a gzip file, one after the other. gzip's reader does so itself, but takes a few bytes of
// something else after one for the cut beginning of another.
type members struct {
	packed *bufio.Reader
	member *gzip.Reader
}

func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.member.Read(p)
		if n > 0 || err != io.EOF { //nolint:errorlint // a file that was cut is another error, which wraps none
			if err == io.EOF { //nolint:errorlint // likewise
				err = nil
			}
			return n, err
		}
		head, err := m.packed.Peek(2)
		switch {
		case len(head) == 0:
			return 0, err
		case !bytes.HasPrefix([]byte{0x1f, 0x8b}, head):
			return 0, gzip.ErrHeader
		}
		if err := m.member.Reset(m.packed); err != nil {
			return 0, err
		}
		m.member.Multistream(false)
	}
}

// isZstd tells a frame of zstd's, or one to be skipped, as pzstd begins with (RFC 8878, section 3.1).
func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) || len(head) > 3 && head[0]&0xf0 == 0x50 &&
		bytes.HasPrefix(head[1:], []byte{0x2a, 0x4d, 0x18})
}

// empty tells whether there is nothing at all.
func (s *source) empty() bool {
	_, err := s.text.Peek(1)
	return errors.Is(err, io.EOF)
}

// sniff finds out the format by the log's first lines.
func (s *source) sniff() (Format, error) {
	head, err := s.text.Peek(sniffBytes)
	if err != nil && err != io.EOF { //nolint:errorlint // as in chunks
		return "", fmt.Errorf("%s: %w", s.name, brokenPack(err))
	}
	if len(bytes.TrimSpace(head)) == 0 {
		return "", fmt.Errorf("%s is empty", s.name)
	}
	if err == nil {
		head = head[:bytes.LastIndexByte(head, '\n')+1]
	}
	detector, votes, texts, escaped := newDetector(), map[Format]int{}, 0, 0
	for line := range bytes.Lines(head) {
		if f := detector.formatOf(bytes.TrimSpace(line)); f != "" {
			votes[f]++
		} else if bytes.HasPrefix(line, []byte("time=")) && bytes.Contains(line, []byte(" msg=")) {
			texts++
		} else if bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`\x`)) {
			escaped++
		}
	}
	best, most := Format(""), 0
	for _, f := range Formats {
		if votes[f] > most {
			best, most = f, votes[f]
		}
	}
	switch {
	case best != "":
		return best, nil
	case texts > 0:
		return "", fmt.Errorf("%s is a log as text; only that of log.format = \"json\" can be compared", s.name)
	}
	if escaped > 0 {
		return "", fmt.Errorf("%s has quotes as \\x22, which is no JSON: nginx writes it if its log_format has escape=json",
			s.name)
	}
	return "", fmt.Errorf("%s: no line at its beginning is a request that we know: lines are our log, nginx's or "+
		"Workhorse's as JSON, "+
		"or Common Log Format with a duration at the end; --format says which", s.name)
}

// chunk is a piece of a log: whole lines, but for one that is too long, of which it has the beginning.
type chunk struct {
	text    []byte
	tooLong bool // the last line of text is cut
}

// chunks reads the log in pieces that end with a line. next may keep what it gets; buffers come from fresh.
func (s *source) chunks(ctx context.Context, fresh func() []byte, next func(chunk) error) error {
	buffer, kept := fresh(), 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := fill(s.text, buffer[kept:maxLine])
		text := buffer[:kept+n]
		if err == io.EOF { //nolint:errorlint // a log that was cut is another error, which wraps none
			return next(chunk{text: text})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, brokenPack(err))
		}
		end := bytes.LastIndexByte(text, '\n') + 1
		if end == 0 {
			if err := next(chunk{text, true}); err != nil {
				return err
			}
			if err := s.skipLine(ctx); err != nil {
				return err
			}
			buffer, kept = fresh(), 0
			continue
		}
		following := fresh()
		kept = copy(following[:maxLine], text[end:])
		if err := next(chunk{text: text[:end]}); err != nil {
			return err
		}
		buffer = following
	}
}

// fill reads until p is full. io.EOF is the log's proper end.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	return n, err
}

// brokenPack says what is wrong with a compressed log.
func brokenPack(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("it ends in the middle of what was compressed: %w", err)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("something else follows what was compressed; use gzip -dc FILE, or zstd -dc FILE, | "+
			"packhorse-bench compare - OTHER: %w", err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("its zstd window is larger than %d MiB; use zstd -dc --long=31 FILE | packhorse-bench compare - "+
			"OTHER: %w", maxWindow>>20, err)
	}
	return err
}

// skipLine drops all up to the end of a line.
func (s *source) skipLine(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := s.text.ReadSlice('\n')
		switch {
		case err == nil, errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("%s: %w", s.name, brokenPack(err))
		}
	}
}
