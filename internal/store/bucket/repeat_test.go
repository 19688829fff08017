package bucket_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// uploads is a storage that takes objects as a whole and in parts. before can answer a request itself, and after one
// that has taken effect; they return true then.
type uploads struct {
	before, after func(w http.ResponseWriter, kind string) bool

	mu     sync.Mutex
	isOpen bool // an upload in parts has begun
	size   int  // of the object; -1: it does not exist
}

func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	query := r.URL.Query()
	kind := r.Method
	switch {
	case query.Has("uploads"):
		kind = "begin"
	case query.Has("partNumber"):
		kind = "part"
	case query.Has("uploadId") && r.Method == http.MethodPost:
		kind = "complete"
	}
	if u.before(w, kind) {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	answer := ""
	switch kind {
	case "begin":
		u.isOpen = true
		answer = "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>" +
			"</InitiateMultipartUploadResult>"
	case "part":
		w.Header().Set("ETag", `"e"`)
	case "complete":
		if !u.isOpen {
			answerError(w, http.StatusNotFound, "NoSuchUpload")
			return
		}
		u.isOpen, u.size = false, partBytes
		answer = "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>e</ETag></CompleteMultipartUploadResult>"
	case http.MethodPut:
		u.size, _ = strconv.Atoi(r.Header.Get("X-Amz-Decoded-Content-Length"))
		w.Header().Set("ETag", `"e"`)
	case http.MethodHead:
		if u.size < 0 {
			w.Header().Set("X-Amz-Request-Id", "r")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Content-Length", strconv.Itoa(u.size))
	case http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if !u.after(w, kind) {
		_, _ = fmt.Fprint(w, answer)
	}
}

const partBytes = 5<<20 + 4

func never(http.ResponseWriter, string) bool { return false }

func put(t *testing.T, u *uploads, size int) error {
	t.Helper()
	b, _ := scripted(t, u.ServeHTTP)
	b.SetPartSize(5 << 20)
	content := make([]byte, size)
	return b.Put(t.Context(), "packs/x", bytes.NewReader(content), int64(size), sha256.Sum256(content))
}

// A completion that took effect is a success, also if its answer says something else or does not arrive.
func TestCompletionWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(w http.ResponseWriter){
		"no answer": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"500":       func(w http.ResponseWriter) { answerError(w, http.StatusInternalServerError, "InternalError") },
		"502 of a proxy": func(w http.ResponseWriter) {
			http.Error(w, "bad gateway", http.StatusBadGateway)
		},
	} {
		u := &uploads{size: -1, before: never, after: func(w http.ResponseWriter, kind string) bool {
			if kind == "complete" {
				disturb(w)
			}
			return kind == "complete"
		}}
		if err := put(t, u, partBytes); err != nil {
			t.Errorf("%s: Put = %v, want success", name, err)
		}
	}
}

func TestCompletionWithoutEffect(t *testing.T) {
	t.Parallel()
	for _, size := range []int{-1, partBytes - 1} { // of the object under the key
		u := &uploads{size: size, after: never, before: func(w http.ResponseWriter, kind string) bool {
			if kind == "complete" {
				answerError(w, http.StatusNotFound, "NoSuchUpload")
			}
			return kind == "complete"
		}}
		err := put(t, u, partBytes)
		checkError(t, "Put", err, fault.Unavailable, "NoSuchUpload")
	}
}

// Amazon S3 answers 409 OperationAborted while another request for a key is running.
func TestConflictsAreRepeated(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, partBytes} {
		seen := map[string]bool{}
		u := &uploads{size: -1, after: never, before: func(w http.ResponseWriter, kind string) bool {
			if seen[kind] {
				return false
			}
			seen[kind] = true
			answerError(w, http.StatusConflict, "OperationAborted")
			return true
		}}
		if err := put(t, u, size); err != nil || u.size != size {
			t.Errorf("Put of %d bytes after conflicts = %v, and the object has %d, want success", size, err, u.size)
		}
	}
}
