package e2e

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const (
	bigBlobs = 300
	bigBlob  = 1 << 20
	// bigGrowth is how much memory a process may take for a push of bigBlobs, in kB.
	bigGrowth = 64 << 10
)

// TestBigPush pushes much more than a server's memory may grow by, to each shape.
func TestBigPush(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	if serverHasRaceDetector() {
		t.Skip("the race detector needs memory too")
	}
	together(t, map[string]func(*testing.T){
		"split": func(t *testing.T) {
			p := newPushPair(t, false)
			pushBig(t, p.gateway, p.token, filepath.Join(p.dir, "repos/one.git"), p.gateway, p.node)
		},
		"serve": func(t *testing.T) {
			dir := t.TempDir()
			repo := gittest.InitAt(t, filepath.Join(dir, "repos/one.git"))
			token := createToken(t, "alice", "--state", filepath.Join(dir, "state"))
			s, err := startServer(dir, os.Environ(), []string{"serve", "--root", "repos", "--state", "state", "--http",
				"127.0.0.1:0", "--ops", ""})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.kill)
			pushBig(t, s, token, repo.Dir, s)
		},
	})
}

// pushBig pushes to a repository, and holds processes to the memory that they may take for it.
func pushBig(t *testing.T, to *serverProcess, token, repo string, processes ...*serverProcess) {
	t.Helper()
	before := make([]int64, len(processes))
	for i, p := range processes {
		// 5: reset the peak (proc(5), "/proc/pid/clear_refs"). Where that is not allowed, the bound holds for all that came
		// before.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0o200)
		before[i] = peakMemory(p)
	}
	body, pipe := io.Pipe()
	go func() { pipe.CloseWithError(writeBig(pipe)) }()
	if got := to.push(token, body); !strings.Contains(got, "ok refs/tags/big") {
		t.Fatalf("the push ends with %.1000q", got)
	}
	if id := gittest.At(t, repo).ID("big"); id.String() != blobID(bigBytes(0)) {
		t.Errorf("the tag is %s", id)
	}
	for i, p := range processes {
		grown := peakMemory(p) - before[i]
		t.Logf("%s: %d MB more than before", p.name, grown>>10)
		if grown > bigGrowth {
			t.Errorf("for a push of %d MB %s took %d MB", bigBlobs*bigBlob>>20, p.name, grown>>10)
		}
	}
}

// bigBytes is one of the blobs.
func bigBytes(i int) []byte {
	b := make([]byte, bigBlob)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(b)
	return b
}

func blobID(b []byte) string {
	h := sha1.New()
	h.Write([]byte("blob " + strconv.Itoa(len(b)) + "\x00"))
	h.Write(b)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// writeBig writes a push of one tag, whose pack has blobs that cannot be compressed (gitformat-pack(5)).
func writeBig(w io.Writer) error {
	head := pktline.AppendLine(nil, fmt.Sprintf("%040d %s refs/tags/big\x00 report-status agent=test", 0,
		blobID(bigBytes(0))))
	if _, err := w.Write(pktline.AppendFlush(head)); err != nil {
		return err
	}
	sum := sha1.New()
	out := io.MultiWriter(w, sum)
	if _, err := out.Write(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), bigBlobs)); err != nil {
		return err
	}
	for i := range bigBlobs {
		entry := bytes.NewBuffer([]byte{0x80 | 3<<4 | bigBlob&15})
		n := bigBlob >> 4
		for ; n >= 0x80; n >>= 7 {
			entry.WriteByte(byte(n) | 0x80)
		}
		entry.WriteByte(byte(n))
		z, err := zlib.NewWriterLevel(entry, zlib.NoCompression)
		if err != nil {
			return err
		}
		_, _ = z.Write(bigBytes(i))
		_ = z.Close()
		if _, err := out.Write(entry.Bytes()); err != nil {
			return err
		}
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}
