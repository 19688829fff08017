package watchdog

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/gittest"
)

// TestStoppedDisk: a disk stops, and it is the one that dumps go to. They go to the other place, and who waits for the disk is in them.
func TestStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	o := options(t)
	o.Stall, o.patience = 200*time.Millisecond, 200*time.Millisecond
	o.Dir, o.Spare = filepath.Join(disk.Dir, "dumps"), filepath.Join(t.TempDir(), "spare")
	o.Probes = []Probe{Readable("repositories", disk.Dir), Writable("state", o.Dir)}
	w := start(t, o)
	if d := w.mustDump(t); filepath.Dir(d.Dir) != o.Spare { // nothing can be made there
		t.Fatalf("%+v", d)
	}
	disk.Stop()
	var found string
	eventually(t, "a dump for the probe", func() bool {
		for _, name := range whole(o.Spare) {
			if strings.Contains(name, "-"+signProbe+"-") {
				found = name
			}
		}
		return found != ""
	})
	d := Dump{Dir: filepath.Join(o.Spare, found)}
	if text := read(t, d, "why.txt"); !strings.Contains(text, `the probe "repositories" has had no answer`) && !strings.Contains(text, `the probe "state" has had no answer`) {
		t.Error(text)
	}
	if text := read(t, d, "stacks.txt"); !strings.Contains(text, ".Readable.func") {
		t.Error("who waits for the disk is not in the stacks")
	}
	if text := read(t, d, "notes.txt"); !strings.Contains(text, o.Dir+" does not take the dump: it does not answer") {
		t.Error(text)
	}
	disk.Release()
}

// TestPlaceHangsMeanwhile: what was written so far is written to the other place too.
func TestPlaceHangsMeanwhile(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Spare = filepath.Join(t.TempDir(), "spare")
	var w *Watchdog
	hangs := make(chan struct{})
	o.Parts = []Part{{"part.txt", func(io.Writer) error {
		<-hangs
		w.places[0].busy.Store(true)
		return nil
	}}}
	w = start(t, o)
	close(hangs)
	d := w.mustDump(t)
	if filepath.Dir(d.Dir) != o.Spare {
		t.Fatalf("%+v", d)
	}
	for _, name := range []string{"why.txt", "stacks.txt", "cpu.pprof", "notes.txt"} {
		if read(t, d, name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
}
