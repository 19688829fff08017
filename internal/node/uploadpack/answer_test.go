package uploadpack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// recorder is a node.ResponseWriter that keeps what it is given.
type recorder struct {
	bytes.Buffer
	length int64 // announced; -1: not
	bulk   int
	cold   bool // the last argument of Bulk
	held   int64
}

func newRecorder() *recorder { return &recorder{length: -1} }

func (r *recorder) SetLength(n int64) { r.length = n }

func (r *recorder) ReserveMemory(n int64) error {
	r.held += n
	return nil
}

func (r *recorder) StartBulk(cold bool) error {
	r.bulk++
	r.cold = cold
	return nil
}
func (r *recorder) Flush() error { return nil }

// answer is a whole answer to a fetch, taken apart.
type answer struct {
	sections  []string // their names in order
	lines     map[string][]string
	pack      []byte
	progress  string
	bandError string
}

// parseAnswer reads a fetch's answer. With sidebandAll, all comes on side-bands.
func parseAnswer(b []byte, sidebandAll bool) (*answer, error) {
	a := &answer{lines: make(map[string][]string)}
	in := bytes.NewReader(b)
	r := pktline.NewReader(in)
	section, ended := "", false
	for {
		t, payload, err := r.Next()
		if err == io.EOF {
			if !ended && len(b) > 0 {
				return a, errors.New("the answer ends without a flush packet")
			}
			return a, nil
		}
		switch {
		case err != nil:
			return a, err
		case ended:
			return a, errors.New("something follows the flush packet")
		case t == pktline.Flush:
			ended = true
			continue
		case t == pktline.Delim:
			if section == "" || section == "packfile" {
				return a, errors.New("a delimiter in the wrong place")
			}
			section = ""
			continue
		case t != pktline.Data:
			return a, fmt.Errorf("unexpected %v packet", t)
		}
		if sidebandAll || section == "packfile" {
			if len(payload) == 0 {
				return a, errors.New("a packet without a band")
			}
			band := pktline.Band(payload[0])
			payload = payload[1:]
			switch band {
			case pktline.BandProgress:
				a.progress += string(payload)
				continue
			case pktline.BandError:
				a.bandError += string(payload)
				ended = true
				continue
			}
			if section == "packfile" {
				a.pack = append(a.pack, payload...)
				continue
			}
			if len(payload) == 0 {
				continue // keep-alive
			}
		}
		line := strings.TrimSuffix(string(payload), "\n") // git leaves it away in shallow-info
		if section == "" {
			section = line
			a.sections = append(a.sections, line)
			continue
		}
		a.lines[section] = append(a.lines[section], line)
	}
}
