package gitssh

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

func TestLFSMessageLimits(t *testing.T) {
	for _, c := range []struct {
		in string
		ok bool
	}{
		{"0009batch" + strings.Repeat("0007k=v", maxLFSArgs) + "00010000", true},
		{"0009batch" + strings.Repeat("0007k=v", maxLFSArgs+1) + "00010000", false},
		{"0009batch" + strings.Repeat("0004", maxLFSArgs+1) + "00010000", false},
		{"000eput-object0001" + "0006ab0000", true},
		{"000eput-object0001" + "0006ab00040006cd0000", false},
	} {
		m, err := readLFSMessage(bufio.NewReaderSize(strings.NewReader(c.in), 16<<10))
		if err == nil {
			_, err = io.Copy(io.Discard, m)
		}
		if c.ok && err != nil || !c.ok && !fault.Is(err, fault.Invalid) {
			t.Errorf("message %.40q and its data = %v, want ok = %t or Invalid", c.in, err, c.ok)
		}
	}
}

// FuzzLFSMessage checks that messages from any input have limits, and that encoding one again gives the same message.
func FuzzLFSMessage(f *testing.F) {
	for _, seed := range []string{"", "0000", "000eversion 1\n0000", "0009batch000fhash-algo=x0001000d" + "oid 12 \n0000",
		"000equit 0001\n", "001aput-object x\n0009size=1\n0001" + "0006ab0005c0000", "zzzz", "0002", "fff1"} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, in []byte, batch bool) {
		m, err := readLFSMessage(bufio.NewReaderSize(strings.NewReader(string(in)), 16<<10))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("readLFSMessage(%q) = %v, want Invalid", in, err)
			}
			return
		}
		if len(m.args) > maxLFSArgs || len(m.command)+len(m.word) > maxLFSLine {
			t.Errorf("readLFSMessage(%q) has %d arguments, want limits", in, len(m.args))
		}
		b := pktline.AppendLine(nil, m.command+" "+m.word)
		for key, value := range m.args {
			b = pktline.AppendLine(b, key+"="+value)
		}
		b = pktline.AppendFlush(b)
		again, err := readLFSMessage(bufio.NewReaderSize(strings.NewReader(string(b)), 16<<10))
		if err != nil && !strings.Contains(err.Error(), "a line of") || err == nil && (again.command != m.command ||
			again.word != m.word || len(again.args) != len(m.args)) {
			t.Errorf("message %+v encoded and read again = %+v, %v", m, again, err)
		}
		if batch {
			memory := admit.NewBudget("requests", 1<<20).Hold("", 0)
			_, err = m.objects(&memory)
			memory.Shrink(0)
		}
		if _, err = io.Copy(io.Discard, m); err == nil && !m.ended {
			t.Errorf("the data of %q ends without a flush packet", in)
		}
	})
}
