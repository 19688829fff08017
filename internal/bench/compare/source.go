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

// Limits of logs.
const (
	maxLine    = 1 << 20   // longer lines are malformed
	sniffBytes = 256 << 10 // length of the beginning that is used to detect the format
	maxWindow  = 128 << 20 // of zstd, the default limit of its own program
)

// Stdin is the name of standard input.
const Stdin = "-"

// expand returns the files of a name, "-", or a pattern such as access.log*.
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
			return nil, fmt.Errorf("pattern %q: %w", name, err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no file matches %q", name)
		}
		files = append(files, found...)
	}
	return files, nil
}

// source is an open log: a file, possibly compressed.
type source struct {
	name   string
	size   int64 // in bytes as stored; 0: unknown
	raw    *counter
	text   *bufio.Reader // uncompressed
	format Format
	close  []func()
}

// counter counts the bytes that one goroutine reads. Other goroutines may read the count.
type counter struct {
	from io.Reader
	n    atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// open opens a log and decompresses it if its first bytes are those of a compressed file, regardless of its name.
func open(name string, stdin io.Reader) (*source, error) {
	s := &source{name: name}
	if name == Stdin {
		if stdin == nil {
			return nil, errors.New("no standard input")
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
			err = fmt.Errorf("%s is a directory: give its files, or a pattern like '%s'", name,
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
		return errors.New("xz is not supported: use xz -dc FILE | packhorse-bench compare - OTHER")
	case bytes.HasPrefix(head, []byte("BZh")):
		return errors.New("bzip2 is not supported: use bzip2 -dc FILE | packhorse-bench compare " +
			"- OTHER")
	}
	s.text = bufio.NewReaderSize(text, sniffBytes)
	return nil
}

// members reads the members of a gzip file one after the other. gzip.Reader does the same, but mistakes a few other
// bytes after a member for a truncated one.
type members struct {
	packed *bufio.Reader
	member *gzip.Reader
}

func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.member.Read(p)
		if n > 0 || err != io.EOF { //nolint:errorlint // the error of a truncated file is another one, and wraps none
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

// isZstd reports whether the data begins with a zstd frame, or a skippable frame as of pzstd (RFC 8878, section 3.1).
func isZstd(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) || len(head) > 3 && head[0]&0xf0 == 0x50 &&
		bytes.HasPrefix(head[1:], []byte{0x2a, 0x4d, 0x18})
}

// empty reports whether the log is empty.
func (s *source) empty() bool {
	_, err := s.text.Peek(1)
	return errors.Is(err, io.EOF)
}

// sniff detects the format from the log's first lines.
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
		return "", fmt.Errorf("%s is a log in text form: compare needs log.format = \"json\"", s.name)
	}
	if escaped > 0 {
		return "", fmt.Errorf("%s is not JSON, because its quotes are \\x22: set escape=json in nginx's log_format",
			s.name)
	}
	return "", fmt.Errorf("%s: unknown format: want JSON of Packhorse, nginx or Workhorse, or Common Log Format with a "+
		"duration at the end, or choose with --format", s.name)
}

// chunk is a piece of a log: whole lines, and possibly the beginning of a line that is too long.
type chunk struct {
	text    []byte
	tooLong bool // the last line of text is truncated
}

// chunks reads the log in pieces that end with a line. next may keep its argument. Buffers come from fresh.
func (s *source) chunks(ctx context.Context, fresh func() []byte, next func(chunk) error) error {
	buffer, kept := fresh(), 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := fill(s.text, buffer[kept:maxLine])
		text := buffer[:kept+n]
		if err == io.EOF { //nolint:errorlint // the error of a truncated log is another one, and wraps none
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

// fill reads until p is full. io.EOF is the regular end of the log.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	return n, err
}

// brokenPack describes the error of a compressed log.
func brokenPack(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the compressed file is truncated: %w", err)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("other data follows the compressed data: use gzip -dc FILE, or zstd -dc FILE, | "+
			"packhorse-bench compare - OTHER: %w", err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("its zstd window is larger than %d MiB: use zstd -dc --long=31 FILE | packhorse-bench compare - "+
			"OTHER: %w", maxWindow>>20, err)
	}
	return err
}

// skipLine skips the rest of a line.
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
