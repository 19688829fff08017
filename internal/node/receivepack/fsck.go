package receivepack

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// DefaultFsck returns the default of Options.Fsck. It disables checks whose violations are common in old histories and
// harmless. Gitaly disables the same ones.
func DefaultFsck() map[string]string {
	return map[string]string{"badTimezone": "ignore", "missingSpaceBeforeDate": "ignore", "zeroPaddedFilemode": "ignore"}
}

// fsckChecks are Git's object checks (git-fsck(1), "FSCK MESSAGES").
var fsckChecks = strings.Fields(`
	badDate badDateOverflow badEmail badFilemode badGpgsig badHeaderContinuation badName badObjectSha1 badParentSha1
	badTagName badTimezone badTree badTreeSha1 badType duplicateEntries emptyName extraHeaderEntry fullPathname
	gitattributesBlob gitattributesLarge gitattributesLineLength gitattributesMissing gitattributesSymlink
	gitignoreSymlink gitmodulesBlob gitmodulesLarge gitmodulesMissing gitmodulesName gitmodulesParse gitmodulesPath
	gitmodulesSymlink gitmodulesUpdate gitmodulesUrl hasDot hasDotdot hasDotgit largePathname mailmapSymlink
	missingAuthor missingCommitter missingEmail missingNameBeforeEmail missingObject missingSpaceBeforeDate
	missingSpaceBeforeEmail missingTag missingTagEntry missingTaggerEntry missingTree missingType missingTypeEntry
	multipleAuthors nulInCommit nulInHeader nullSha1 treeNotSorted unknownType unterminatedHeader zeroPaddedDate
	zeroPaddedFilemode`)

// fatalChecks are the checks that cannot be relaxed.
var fatalChecks = []string{"nulInHeader", "unterminatedHeader"}

// ValidateFsck returns an error for each invalid name or severity of Options.Fsck, in the order of the names.
func ValidateFsck(severities map[string]string) (errs []error) {
	for _, check := range slices.Sorted(maps.Keys(severities)) {
		severity := severities[check]
		switch {
		case !slices.Contains(fsckChecks, check):
			errs = append(errs, fmt.Errorf("unknown object check %.60q%s; git-fsck(1) lists them", check, didYouMean(check)))
		case severity != "error" && severity != "warn" && severity != "ignore":
			errs = append(errs, fmt.Errorf("severity of %s: got %.60q, want error, warn or ignore", check, severity))
		case severity != "error" && slices.Contains(fatalChecks, check):
			errs = append(errs, fmt.Errorf("severity of %s: the check cannot be relaxed, git always reports an error", check))
		}
	}
	return errs
}

func didYouMean(check string) string {
	for _, known := range fsckChecks {
		if strings.EqualFold(known, check) {
			return ", did you mean " + known + "?"
		}
	}
	return ""
}

// fsckArguments sets whether objects are checked, and the server's severities unless the repository has its own.
func (p *pushSession) fsckArguments(set func(key, value string)) {
	on := "true"
	if p.policy.NoFsck {
		on = "false"
	}
	set("receive.fsckObjects", on)
	set("transfer.fsckObjects", on)
	for _, check := range slices.Sorted(maps.Keys(p.options.Fsck)) {
		if !p.policy.OwnFsck[strings.ToLower(check)] {
			set("receive.fsck."+check, p.options.Fsck[check])
		}
	}
}

// fsckFailure matches Git's message about an object that fails a check.
var fsckFailure = regexp.MustCompile(`error: object ([0-9a-f]{40,64}): ([a-zA-Z0-9]+): `)

// maxExplained is the maximum number of failed checks that are explained to a client.
const maxExplained = 3

// explainFsck sends the client the settings that accept the refused objects, if Git named these.
func (p *pushSession) explainFsck() error {
	explained := make(map[string]bool)
	for _, m := range fsckFailure.FindAllStringSubmatch(p.gitErrors.text(), -1) {
		id, check := m[1], m[2]
		if explained[check] || len(explained) == maxExplained {
			continue
		}
		explained[check] = true
		text := fmt.Sprintf("object %s fails the check %s\n"+
			"to accept it, the administrator sets push.fsck.%s = \"ignore\" for the server, "+
			"or receive.fsck.%s = ignore in this repository's config\n", id, check, check, check)
		if slices.Contains(fatalChecks, check) {
			text = fmt.Sprintf("object %s fails the check %s, which cannot be relaxed\n", id, check)
		}
		if err := p.out.say(text); err != nil {
			return err
		}
	}
	return nil
}
