package pktline

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReader(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		in   string
		want string // types and payloads
		err  error
	}{
		"empty":             {"", "", io.EOF},
		"all kinds":         {"0006a\n0001000200000004", "data a|delim|response-end|flush|data ", io.EOF},
		"capital digits":    {"000Aabcdef", "data abcdef", io.EOF},
		"cut in the digits": {"0006a\n00", "data a", io.ErrUnexpectedEOF},
		"cut in the data":   {"0010abc", "", io.ErrUnexpectedEOF},
		"cut before data":   {"0010", "", io.ErrUnexpectedEOF},
		"length 3":          {"0003", "", ErrSyntax},
		"too long":          {"fff1" + strings.Repeat("x", 65521), "", ErrSyntax},
		"longest": {"fff0" + strings.Repeat("x", MaxPayload), "data " + strings.Repeat("x", MaxPayload),
			io.EOF},
		"no digits":    {"00-5a", "", ErrSyntax},
		"sign":         {"+006a\n", "", ErrSyntax},
		"space":        {" 006a\n", "", ErrSyntax},
		"two newlines": {"0007a\n\n", "data a\n", io.EOF},
	} {
		for how, from := range map[string]io.Reader{
			"at once": strings.NewReader(test.in), "byte by byte": iotest.OneByteReader(strings.NewReader(test.in)),
			"with data and error": iotest.DataErrReader(strings.NewReader(test.in)),
		} {
			r := NewReader(from)
			var got []string
			var err error
			for {
				var kind Type
				var p []byte
				if kind, p, err = r.Line(); err != nil {
					break
				}
				if kind == Data {
					got = append(got, "data "+string(p))
				} else {
					got = append(got, kind.String())
				}
			}
			if s := strings.Join(got, "|"); s != test.want || !errors.Is(err, test.err) {
				t.Errorf("%s, %s: %.60q, %v; want %.60q, %v", name, how, s, err, test.want, test.err)
			}
		}
	}
}

func TestRewind(t *testing.T) {
	t.Parallel()
	r := NewReader(strings.NewReader("0006a\n0006b\n"))
	for range 2 {
		for _, want := range []string{"a", "b"} {
			if _, p, err := r.Line(); err != nil || string(p) != want {
				t.Errorf("Line() = %q, %v, want %q", p, err, want)
			}
		}
		if !r.Rewind() {
			t.Error("Rewind() = false after a short request, want true")
		}
	}
	r = NewReader(strings.NewReader(strings.Repeat("8000"+strings.Repeat("x", 0x8000-4), 3)))
	for range 3 {
		if _, _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if r.Rewind() {
		t.Error("Rewind() = true after a request that is longer than the buffer, want false")
	}
}

func TestAppendBandSplits(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("x"), 2*MaxBandData+1)
	r := NewReader(bytes.NewReader(AppendBand(nil, BandData, data)))
	var got []byte
	for _, want := range []int{MaxBandData, MaxBandData, 1} {
		kind, p, err := r.Next()
		if err != nil || kind != Data || len(p) != want+1 || Band(p[0]) != BandData {
			t.Fatalf("%v, %d bytes, %v; want %d", kind, len(p), err, want)
		}
		got = append(got, p[1:]...)
	}
	if !bytes.Equal(got, data) {
		t.Error("the data changed")
	}
}

func TestTooLongPacketPanics(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"Append":     func() { Append(nil, make([]byte, MaxPayload+1)) },
		"AppendLine": func() { AppendLine(nil, make([]byte, MaxPayload)) },
		"Finish":     func() { b, at := Start(nil); Finish(append(b, make([]byte, MaxPayload+1)...), at) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s wrote a packet that is not readable", name)
				}
			}()
			f()
		}()
	}
}

// FuzzReader encodes the packets that it reads. The result has the same bytes, except for the case of hexadecimal
// digits.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"", "0000", "0001", "0002", "0003", "0004", "0006a\n", "000Aabcdef", "fff0", "ffff",
		"00-1", "0014command=ls-refs\n0000"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(iotest.HalfReader(bytes.NewReader(in)))
		var out []byte
		for {
			kind, p, err := r.Next()
			if err != nil {
				if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.Is(err, ErrSyntax) {
					t.Errorf("%v", err)
				}
				break
			}
			switch kind {
			case Data:
				out = Append(out, p)
			case Flush:
				out = AppendFlush(out)
			case Delim:
				out = AppendDelim(out)
			case ResponseEnd:
				out = AppendResponseEnd(out)
			}
		}
		if len(out) > len(in) {
			t.Fatalf("%q became %q", in, out)
		}
		again := NewReader(bytes.NewReader(out))
		for {
			if _, _, err := again.Next(); err == io.EOF {
				return
			} else if err != nil {
				t.Fatalf("%q became %q, which cannot be read: %v", in, out, err)
			}
		}
	})
}

func TestParseLength(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]int{"0000": 0, "0001": 1, "0002": 2, "0004": 4, "fff0": 65520,
		"FFF0more": 65520} {
		if n, err := ParseLength([]byte(head)); err != nil || n != want {
			t.Errorf("%q: %d, %v", head, n, err)
		}
	}
	for _, head := range []string{"", "0", "001", "0003", "fff1", "ffff", "00g0", "-001", " 004"} {
		if n, err := ParseLength([]byte(head)); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %d, %v", head, n, err)
		}
	}
	if _, err := ParseLength(nil); !errors.Is(err, ErrSyntax) {
		t.Errorf("nothing: %v", err)
	}
}
