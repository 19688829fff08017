package estimate

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	maxPath = 512     // bytes of a repository's path; longer ones are cut
	maxSize = 1 << 42 // bytes of a response; larger numbers are not believed
)

// request is a logged request.
type request struct {
	time           time.Time
	method, target string
	status         int
	bytes          int64 // of the response; negative if it is not logged
}

// parse parses a line in one of the formats. Gitea and Forgejo write the combined format to their access log.
func parse(line []byte) (request, bool) {
	switch {
	case len(line) > 0 && line[0] == '{':
		return parseJSON(line)
	case bytes.Contains(line, []byte("router: completed ")):
		return parseRouter(line)
	}
	return parseCombined(line)
}

// combined matches the common and the combined format of nginx and Apache: HOST IDENT USER [TIME] "REQUEST" STATUS
// BYTES.
var combined = regexp.MustCompile(`\[([^\]"]+)\] "([A-Z]+) (\S+)[^"]*" (\d{3}) (\d+|-)(?:\s|$)`)

func parseCombined(line []byte) (request, bool) {
	m := combined.FindSubmatch(line)
	if m == nil {
		return request{}, false
	}
	at, ok := parseTime(string(m[1]))
	status, _ := strconv.Atoi(string(m[4]))
	return request{at, string(m[2]), string(m[3]), status, parseSize(string(m[5]))}, ok
}

// router matches a line of the router log of Gitea and Forgejo, which may have colours:
// TIME ... router: completed METHOD TARGET for CLIENT, STATUS TEXT in DURATION @ FUNCTION.
var (
	router = regexp.MustCompile(
		`(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d).*router: completed ([A-Z]+) (\S+) for [^,]*, (\d{3}) `)
	colours = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

func parseRouter(line []byte) (request, bool) {
	m := router.FindSubmatch(colours.ReplaceAll(line, nil))
	if m == nil {
		return request{}, false
	}
	at, ok := parseTime(string(m[1]))
	status, _ := strconv.Atoi(string(m[4]))
	return request{at, string(m[2]), string(m[3]), status, -1}, ok
}

// The keys of JSON logs, the preferred ones first. "uri" and "written_bytes" are those of GitLab Workhorse. Logs of
// nginx mostly have the names of its variables.
var (
	timeKeys   = []string{"time", "time_iso8601", "time_local", "timestamp", "@timestamp", "msec", "ts"}
	methodKeys = []string{"method", "request_method"}
	targetKeys = []string{"uri", "request_uri", "url", "path"}
	statusKeys = []string{"status", "status_code"}
	sizeKeys   = []string{"written_bytes", "body_bytes_sent", "bytes_sent", "bytes", "size"}
)

func parseJSON(line []byte) (request, bool) {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if decoder.Decode(&fields) != nil {
		return request{}, false
	}
	first := func(keys []string) string {
		for _, key := range keys {
			switch value := fields[key].(type) {
			case string:
				return value
			case json.Number:
				return value.String()
			}
		}
		return ""
	}
	q := request{method: first(methodKeys), target: first(targetKeys), bytes: parseSize(first(sizeKeys))}
	if line, ok := fields["request"].(string); ok && (q.method == "" || q.target == "") {
		q.method, line, _ = strings.Cut(line, " ")
		q.target, _, _ = strings.Cut(line, " ")
	}
	var ok bool
	q.time, ok = parseTime(first(timeKeys))
	status, err := strconv.Atoi(first(statusKeys))
	q.status = status
	return q, ok && err == nil && q.method != "" && q.target != ""
}

// parseTime parses a time of a log. Without a zone it is UTC: only differences matter.
func parseTime(text string) (time.Time, bool) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if !(seconds > 0 && seconds < 1e10) {
			return time.Time{}, false
		}
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(part*1e9)).UTC(), true
	}
	for _, layout := range []string{time.RFC3339, "02/Jan/2006:15:04:05 -0700", "2006/01/02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), at.Year() >= 1970 && at.Year() < 2200
		}
	}
	return time.Time{}, false
}

// parseSize returns -1 if the text is not a size.
func parseSize(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxSize {
		return -1
	}
	return n
}

// kind is the kind of a request.
type kind uint8

const (
	other kind = iota
	advertisement
	post // ls-refs or fetch
)

// repository returns the path of the repository without ".git", and the kind of the request.
func (q *request) repository() (path string, is kind) {
	target, query, _ := strings.Cut(q.target, "?")
	if _, rest, ok := strings.Cut(target, "://"); ok {
		if _, rest, ok = strings.Cut(rest, "/"); ok {
			target = rest
		}
	}
	path, suffix, is := target, "/git-upload-pack", post
	switch {
	case q.method == "POST":
	case q.method == "GET" && strings.Contains(query, "service=git-upload-pack"):
		suffix, is = "/info/refs", advertisement
	default:
		return "", other
	}
	path, ok := strings.CutSuffix(target, suffix)
	if !ok {
		return "", other
	}
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	return strings.ToValidUTF8(path[:min(len(path), maxPath)], "?"), is
}
