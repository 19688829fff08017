package watchdog

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestStoppedDisk: a disk stops, and it is the one that dumps go to. They go to the other place, and who waits for the
// disk is in them.
func TestStoppedDisk(t *testing.T) {
	t.Parallel()
	disk := gittest.NewDisk(t)
	o := options(t)
	o.Stall, o.Interval, o.diskPatience = 200*time.Millisecond, 10*time.Millisecond, time.Second
	o.Dir, o.Spare = filepath.Join(disk.Dir, "dumps"), filepath.Join(t.TempDir(), "spare")
	o.Probes = []Probe{Readable("repositories", disk.Dir), Writable("state", o.Dir)}
	w := start(t, o)
	disk.Stop()
	eventually(t, "a dump that tells who waits for the disk", func() bool {
		for _, name := range whole(o.Spare) {
			said := func(file string) string {
				text, _ := os.ReadFile(filepath.Join(o.Spare, name, file))
				return string(text)
			}
			if strings.Contains(name, "-"+signProbe+"-") && strings.Contains(said("why.txt"),
				`the probe "repositories" has had no answer`) &&
				strings.Contains(said("stacks.txt"), ".Readable.func") &&
				strings.Contains(said("notes.txt"), o.Dir+" does not take the dump: it does not answer") {
				return true
			}
		}
		return false
	})
	disk.Release()
	w.Close()
	// Operations that hung continue now. They would create directories below the mount point after the unmount.
	w.work.Wait()
	for _, p := range w.places {
		eventually(t, "nothing to hang in "+p.dir, func() bool { return !p.busy.Load() })
	}
}

// TestPlaceHangsMeanwhile checks that the finished parts are written to the other place as well.
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
	for _, name := range []string{"why.txt", "stacks.txt", "commands.txt", "notes.txt"} {
		if read(t, d, name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
}
