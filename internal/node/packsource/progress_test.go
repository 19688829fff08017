package packsource

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestProgressText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxProgress)
	for name, test := range map[string]struct {
		pieces []string
		want   string
	}{
		"nothing": {nil, ""},
		"a line":  {[]string{"Counting objects: 1, done.\n"}, "Counting objects: 1, done.\n"},
		"counting": {[]string{"Counting: 1\rCounting: 2\r", "Counting: 3\n"},
			"Counting: 1\rCounting: 2\rCounting: 3\n"},
		"in pieces":       {[]string{"Cou", "nting", ": 1", "\r"}, "Counting: 1\r"},
		"no end yet":      {[]string{"whole\nbegin"}, "whole\n"},
		"fatal":           {[]string{"one\nfatal: /secret/path is gone\ntwo\n"}, "one\ntwo\n"},
		"error":           {[]string{"err", "or: bad object\r", "one\n"}, "one\n"},
		"warning":         {[]string{"warning: x\nhint: y\n"}, ""},
		"not at the line": {[]string{"no error: all went well\n"}, "no error: all went well\n"},
		"carriage return": {[]string{"one\r\nfatal: x\n"}, "one\r\n"},
		"as long as may":  {[]string{long[1:] + "\n", "one\n"}, long[1:] + "\n"},
		"too long":        {[]string{long + "x\n", "one\n"}, "one\n"},
		"long in pieces":  {[]string{long, long, "\none\n"}, "one\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p progressText
			for _, piece := range test.pieces {
				b := []byte(piece)
				p.add(b)
				clear(b) // it was the caller's
			}
			if got := string(p.take()); got != test.want {
				t.Errorf("%.80q, want %.80q", got, test.want)
			}
			if again := p.take(); len(again) > 0 {
				t.Errorf("taken twice: %.80q", again)
			}
		})
	}
}

// Text belongs to the caller that takes it, lines are never split, and text that no caller takes is limited.
func TestProgressShared(t *testing.T) {
	t.Parallel()
	var p progressText
	var want strings.Builder
	var got bytes.Buffer
	done := make(chan struct{})
	var adding sync.WaitGroup
	adding.Go(func() {
		for i := range 50 { // fewer than the limit
			line := fmt.Sprintf("Counting objects: %d\r", i)
			want.WriteString(line)
			for _, b := range []byte(line) {
				p.add([]byte{b})
			}
		}
	})
	go func() { adding.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		text := p.take()
		if len(text) > 0 && text[len(text)-1] != '\r' {
			t.Fatalf("a torn line: %q", text)
		}
		got.Write(text)
		clear(text)
	}
	if got.String() != want.String() {
		t.Errorf("%q, want %q", &got, &want)
	}
	for range 10 * maxProgress {
		p.add([]byte("a line\nfatal: and one that is dropped\n"))
	}
	if text := p.take(); len(text) > maxProgress || len(text) < maxProgress-len("a line\n") ||
		cap(p.line) > 2*maxProgress {
		t.Errorf("%d bytes waited, and room for %d in a line; at most %d may wait", len(text), cap(p.line), maxProgress)
	}
}
