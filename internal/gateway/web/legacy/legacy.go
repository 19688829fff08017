// Package legacy translates addresses of cgit, gitweb and Gitiles into those of pages, so that links continue to work
// when a server replaces them. It does no I/O: the page finds out whether what an address names exists.
package legacy

import (
	"cmp"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// programs are the names of these programs by the places at which they are often installed.
var programs = []struct{ prefix, name string }{{"/cgit/", "cgit"}, {"/cgit.cgi/", "cgit"}, {"/cgi-bin/cgit/", "cgit"},
	{"/cgi-bin/cgit.cgi/", "cgit"}, {"/gitweb/", "gitweb"}, {"/gitweb.cgi/", "gitweb"}, {"/cgi-bin/gitweb/", "gitweb"},
	{"/cgi-bin/gitweb.cgi/", "gitweb"}, {"/plugins/gitiles/", "gitiles"}}

// Below returns the path below the place of an old program, and its name. It is "" for other paths.
func Below(path string) (rest, program string) {
	for _, p := range programs {
		if rest, ok := strings.CutPrefix(path+"/", p.prefix); ok {
			return "/" + strings.Trim(rest, "/"), p.name
		}
	}
	return path, ""
}

// Find returns the path and query of the page for an old address. ok is false for other addresses.
func Find(u *url.URL) (to string, ok bool) {
	at := u.EscapedPath()
	if strings.Contains(at, "/-/") { // a page of this server
		return "", false
	}
	at, program := Below(at)
	query := values(u.RawQuery)
	if query["p"] != "" {
		return gitweb(query), true
	}
	if program == "" || program == "gitiles" {
		if to, ok := gitiles(at, query); ok {
			return to, true
		}
	}
	repo, action, rest := cut(at, program, query)
	switch isOfCgit := program != "gitweb" && slices.Contains(cgitPages, action); {
	case isOfCgit && (program != "" || !slices.Contains(gitwebActions, action) || !startsWithRevision(rest)):
		return cgit(repo, action, page.Unescape(rest), query), true
	case action != "":
		return gitwebPath(repo, action, rest, query)
	case program != "" && at == "/":
		return "/", true
	}
	return page.Address(at, ""), program != "" // of a repository
}

// values parses a query whose parts are separated by & or, as in gitweb, by semicolons. Of several values the first one
// counts.
func values(query string) map[string]string {
	list := map[string]string{}
	for part := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(part, "=")
		if value, err := url.QueryUnescape(value); err == nil && list[key] == "" {
			list[key] = value
		}
	}
	return list
}

// first returns the first text that is not empty; HEAD if all are.
func first(list ...string) string {
	for _, text := range list {
		if text != "" {
			return strings.TrimPrefix(strings.TrimPrefix(text, "refs/heads/"), "refs/tags/")
		}
	}
	return "HEAD"
}

// cgitPages are the pages of cgit.
var cgitPages = []string{"about", "atom", "blame", "blob", "commit", "diff", "log", "patch", "plain", "rawdiff", "refs",
	"snapshot", "stats", "summary", "tag", "tree"}

// cgit translates /REPO/PAGE/PATH?h=BRANCH&id=COMMIT&id2=COMMIT.
func cgit(repo, name, file string, query map[string]string) string {
	revision := first(query["id"], query["h"])
	switch name {
	case "about":
		if file != "" {
			return page.Address(repo, "file", revision, file)
		}
		return page.Address(repo, "")
	case "refs":
		return page.Address(repo, "refs")
	case "atom":
		return page.Address(repo, "feed", first(query["h"]))
	case "tag":
		return page.Address(repo, "commit", first(query["h"], query["id"]))
	case "commit": // a path limits the changes
		return page.Address(repo, "commit", revision)
	case "patch", "rawdiff":
		return page.Address(repo, "commit", revision) + ".patch"
	case "snapshot":
		return snapshot(repo, file)
	case "diff":
		if query["id2"] != "" {
			return compare(repo, first(query["id2"]), revision)
		}
		return page.Address(repo, "commit", revision)
	case "log":
		return cgitLog(repo, revision, file, query)
	case "plain":
		return page.Address(repo, "raw", revision, file)
	case "blob": // whose ID the address has, too
		return page.Address(repo, "raw", first(query["h"]), file)
	case "blame":
		if file != "" {
			return page.Address(repo, name, revision, file)
		}
		return page.Address(repo, "tree", revision)
	case "tree":
		return page.Address(repo, name, revision, file)
	}
	return page.Address(repo, "")
}

// cgitLog translates a log. q is what to search for: a part of messages, a name, or a range of commits.
func cgitLog(repo, revision, file string, query map[string]string) string {
	text := query["q"]
	from, to, isRange := strings.Cut(text, "..")
	switch {
	case text != "" && query["qt"] == "range":
		if isRange {
			return compare(repo, first(from), first(to))
		}
		return page.Address(repo, "log", first(text))
	case text != "":
		return search(repo, revision, query["qt"], text, file)
	case file != "":
		return page.Address(repo, "history", revision, file)
	}
	return page.Address(repo, "log", revision)
}

// search returns the address of the commits with a text. field is that of cgit's or gitweb's form: author, committer or
// grep, for the message.
func search(repo, revision, field, text, file string) string {
	query := url.Values{"text": {text}}
	if field == "author" || field == "committer" {
		query = url.Values{"author": {text}}
	}
	if file != "" {
		query.Set("path", file)
	}
	return page.Address(repo, "log", revision) + "?" + query.Encode()
}

func compare(repo, from, to string) string {
	return page.Address(repo, "compare") + "/" + page.Path(from) + ".." + page.Path(to)
}

// snapshot translates the name of an archive, NAME-REVISION.FORMAT. The page of another
// format names those that exist.
func snapshot(repo, name string) string {
	base := strings.TrimSuffix(path.Base(page.Unescape(repo)), ".git")
	name = first(strings.TrimPrefix(name, base+"-"))
	if revision, ok := strings.CutSuffix(name, ".tgz"); ok {
		name = revision + ".tar.gz"
	}
	return page.Address(repo, "archive", name)
}

// cut cuts an address at the first component that is the name of a page, after the first component.
func cut(at, program string, query map[string]string) (repo, name, rest string) {
	parts := strings.Split(strings.Trim(at, "/"), "/")
	for i, part := range parts {
		if i > 0 && (program != "gitweb" && slices.Contains(cgitPages, part) ||
			program != "cgit" && slices.Contains(gitwebActions, part) && (part != "search" || query["s"] != "")) {
			return strings.Join(parts[:i], "/"), part, strings.Join(parts[i+1:], "/")
		}
	}
	return "", "", ""
}

// gitweb translates the fields p (repository), a (action), h (ID), hb (commit), f (path) of a query, hp and hpb of what
// it is compared with.
func gitweb(query map[string]string) string {
	repo := page.Path(query["p"])
	id, commit, file := first(query["h"]), first(query["hb"]), query["f"]
	switch action := query["a"]; action {
	case "heads", "tags", "remotes":
		return page.Address(repo, "refs")
	case "commitdiff":
		if parent := query["hp"]; parent != "" && parent[0] != '-' { // -c and --cc are ways to show a merge
			return compare(repo, first(parent), id)
		}
		return page.Address(repo, "commit", id)
	case "commit", "tag", "object":
		return page.Address(repo, "commit", id)
	case "commitdiff_plain", "patch", "patches":
		return page.Address(repo, "commit", id) + ".patch"
	case "shortlog", "log":
		return page.Address(repo, "log", first(query["h"], query["hb"]))
	case "tree", "history", "blob", "blame", "blame_incremental", "blob_plain":
		kinds := map[string]string{"blob": "file", "blame_incremental": "blame", "blob_plain": "raw"}
		kind := cmp.Or(kinds[action], action)
		switch {
		case file != "":
			return page.Address(repo, kind, commit, file)
		case action == "history":
			return page.Address(repo, "log", first(query["hb"], query["h"]))
		case action == "tree":
			return page.Address(repo, kind, first(query["hb"], query["h"]))
		}
	case "atom", "rss":
		return page.Address(repo, "feed", id)
	case "snapshot":
		format := cmp.Or(map[string]string{"zip": ".zip", "tbz2": ".tar.bz2", "txz": ".tar.xz"}[query["sf"]], ".tar.gz")
		return page.Address(repo, "archive", id+format)
	case "search":
		if query["st"] == "grep" {
			name := regexp.QuoteMeta(strings.TrimSuffix(query["p"], ".git"))
			return "/-/search?q=" + url.QueryEscape("repo:^"+name+"$ "+query["s"])
		}
		return search(repo, id, query["st"], query["s"], "")
	case "blobdiff", "blobdiff_plain":
		if query["hpb"] == "" {
			return page.Address(repo, "commit", commit)
		}
		return compare(repo, first(query["hpb"]), commit)
	}
	return page.Address(repo, "")
}

// gitwebActions are the actions of gitweb.
var gitwebActions = []string{"atom", "blame", "blame_incremental", "blob", "blob_plain", "blobdiff", "blobdiff_plain",
	"commit", "commitdiff", "commitdiff_plain", "forks", "heads", "history", "log", "object", "patch", "patches",
	"remotes", "rss", "search", "search_help", "shortlog", "snapshot", "summary", "tag", "tags", "tree"}

// startsWithRevision reports whether the rest of a path that both programs may have printed is gitweb's.
func startsWithRevision(rest string) bool {
	revision, _, hasPath := strings.Cut(page.Unescape(rest), ":/")
	return hasPath || revision == "HEAD" || isID(strings.SplitN(revision, ".", 2)[0]) || strings.HasPrefix(rest, "refs/")
}

// place matches what follows the action, [PARENT[:PATH]..]REVISION[:PATH], as gitweb does.
var place = regexp.MustCompile(`(?s)^(?:(.+?)(?::.+)?\.\.)?([^:]+?)?(?::(.+))?$`)

// gitwebPath translates /REPO/ACTION/REVISION:/PATH. Other fields may follow as a query.
func gitwebPath(repo, action, rest string, query map[string]string) (string, bool) {
	rest = page.Unescape(rest)
	m := place.FindStringSubmatch(rest)
	switch {
	case m == nil:
		return "", false
	case action == "snapshot" && query["sf"] == "":
		return snapshot(repo, rest), true
	}
	commit, file := m[2], strings.Trim(m[3], "/")
	// a query names the file if the ID is that of a blob or tree, or if the path has ..
	if file == "" && query["f"] != "" {
		if file = query["f"]; !strings.Contains(file, "..") {
			commit = ""
		}
	}
	return gitweb(map[string]string{"p": page.Unescape(repo), "a": action, "h": m[2], "hb": commit, "hp": m[1],
		"hpb": m[1], "f": file, "s": query["s"], "st": query["st"], "sf": query["sf"]}), true
}

// gitiles translates /REPO/+VIEW/REVISION/PATH.
func gitiles(at string, query map[string]string) (string, bool) {
	repo, view, ok := strings.Cut(strings.Trim(at, "/"), "/+")
	if !ok || repo == "" {
		return "", false
	}
	view, rest, _ := strings.Cut(view, "/")
	rest = strings.TrimSuffix(rest, "/")
	kind := map[string]string{"": "file", "show": "file", "log": "log", "blame": "blame", "doc": "file",
		"diff": "commit"}[view]
	switch {
	case view == "refs":
		return page.Address(repo, "refs"), true
	case view == "archive":
		return page.Address(repo, "archive") + "/" + rest, true
	case kind == "":
		return "", false
	case rest == "":
		return page.Address(repo, ""), true
	case strings.HasSuffix(rest, "%5E%21") || strings.HasSuffix(rest, "^!"):
		return page.Address(repo, "commit") + "/" + strings.TrimSuffix(strings.TrimSuffix(rest, "%5E%21"), "^!"), true
	case strings.Contains(rest, ".."):
		return page.Address(repo, "compare") + "/" + rest, true
	case strings.EqualFold(query["format"], "TEXT"):
		return page.Address(repo, "raw") + "/" + rest, true
	case view == "log":
		return page.Address(repo, "log") + "/" + rest, true // the page separates revision and path
	case view == "" && isID(rest):
		return page.Address(repo, "commit", rest), true
	}
	return page.Address(repo, kind) + "/" + rest, true
}

// isID reports whether text is a full object ID.
func isID(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}
