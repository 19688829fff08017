package migrate

import (
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Cgit reads a cgitrc (cgitrc(5)): repositories with their directories, descriptions, owners and sections.
func Cgit(path string) (*Result, error) {
	r := newResult()
	if err := r.cgitrc(path); err != nil {
		return nil, err
	}
	return r.check()
}

// looks has the settings of the look of pages that have an equivalent.
var looks = map[string]string{"root-title": "pages.title", "logo": "pages.logo", "css": "pages.style",
	"root-readme": "pages.text", "site_name": "pages.title", "stylesheet": "pages.style", "home_text": "pages.text"}

func (r *Result) cgitrc(path string) error {
	lines, err := r.lines(path)
	var now *Repository
	for _, l := range lines {
		key, value, ok := strings.Cut(l.text, "=")
		switch key = strings.TrimSpace(key); {
		case l.text == "" || strings.HasPrefix(l.text, "#"):
		case !ok:
			r.note(l, "it is not a setting")
		case key == "include":
			if err := r.cgitrc(value); err != nil {
				return err
			}
		case key == "project-list":
			r.note(l, "the file %s is ignored: Packhorse lists all repositories below the root that a caller may read. Add "+
				"rules for those that cgit does not show", value)
		case key == "scan-path":
			r.note(l, "repositories below %s are not listed: serve the directory (packhorse serve --root), where gitweb.owner "+
				"and gitweb.description of each config count", value)
		case key == "section":
			r.section = value
		case key == "repo.url":
			now = r.repository(strings.Trim(value, "/"))
			now.Category = r.section
		case looks[key] != "":
			r.note(l, "set %s instead", looks[key])
		case now == nil || !strings.HasPrefix(key, "repo."):
			r.note(l, noEquivalent)
		case key == "repo.path":
			now.Dir = value
		case key == "repo.desc":
			now.Description = value
		case key == "repo.owner":
			now.Owner = value
		case key == "repo.section":
			now.Category = value
		case (key == "repo.hide" || key == "repo.ignore") && value == "0":
		case key == "repo.hide":
			now.Unlisted = true
		case key == "repo.ignore":
			now.Unlisted = true
			r.note(l, "%s is unlisted, and its readers can open it: add a rule that names them", now.Path)
		default:
			r.note(l, noEquivalent)
		}
	}
	return err
}

// assignment is a plain assignment of a string in Perl.
var assignment = regexp.MustCompile(`^(?:our\s+)?\$(\w+)\s*=\s*(?:"([^"\\$@]*)"|'([^'\\]*)')\s*;\s*(?:#.*)?$`)

// Gitweb reads the configuration of gitweb (gitweb.conf(5)), which is Perl: only plain assignments of strings count.
func Gitweb(path string) (*Result, error) {
	r := newResult()
	lines, err := r.lines(path)
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for _, l := range lines {
		m := assignment.FindStringSubmatch(l.text)
		switch {
		case l.text == "" || strings.HasPrefix(l.text, "#") || l.text == "1;":
		case m == nil:
			r.note(l, "it is not a plain assignment, and is ignored")
		default:
			set[m[1]] = m[2] + m[3]
			if look := looks[m[1]]; look != "" {
				r.note(l, "set %s instead", look)
			} else if m[1] != "projectroot" && m[1] != "projects_list" {
				r.note(l, "it has no equivalent: $%s", m[1])
			}
		}
	}
	list := set["projects_list"]
	if list == "" {
		r.note(line{file: path}, "without $projects_list there is no list: serve %s (packhorse serve --root)",
			set["projectroot"])
		return r.check()
	}
	if lines, err = r.lines(list); err != nil {
		return nil, err
	}
	for _, l := range lines {
		name, owner, _ := strings.Cut(l.text, " ")
		name, errName := url.QueryUnescape(name)
		owner, errOwner := url.QueryUnescape(owner)
		if l.text == "" {
			continue
		}
		dir := filepath.Join(set["projectroot"], name)
		if errName != nil || errOwner != nil || !filepath.IsLocal(name) || !repo.IsGitDir(dir) {
			r.note(l, "it is not a repository below $projectroot")
			continue
		}
		to := r.repository(name)
		to.Owner, to.Dir = owner, dir
		if text, err := linesOf(filepath.Join(dir, "description")); err == nil && len(text) > 0 &&
			!strings.HasPrefix(text[0].text, "Unnamed repository") {
			to.Description = text[0].text
		}
		if text, err := linesOf(filepath.Join(dir, "category")); err == nil && len(text) > 0 {
			to.Category = text[0].text
		}
	}
	return r.check()
}
