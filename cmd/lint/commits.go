package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const maxSubject = 72

// trailer is a line such as "Signed-off-by: ...", which says nothing about the change.
var trailer = regexp.MustCompile(`^[A-Z][A-Za-z-]+: `)

// published are commits with a fault that was seen when others had built on them. A new one is no reason
// for an entry: its message can be changed.
var published = []string{
	"78d3e61b", // its subject has two characters too many
}

// commitFaults checks the messages of the commits made since this file exists. In a shallow clone
// it checks the ones that are present.
func commitFaults() ([]string, error) {
	if _, err := command("git", "rev-parse", "--verify", "HEAD"); err != nil {
		return nil, nil // an archive of the sources, without history
	}
	added, err := command("git", "log", "--diff-filter=A", "--format=%H", "--", "cmd/lint/commits.go")
	if err != nil || strings.TrimSpace(added) == "" {
		return nil, err
	}
	all := strings.Fields(added)
	// --ancestry-path leaves out commits of branches that began before.
	log, err := command("git", "log", "--no-merges", "--ancestry-path", "--format=%h%x00%B%x01", all[len(all)-1]+"..HEAD")
	if err != nil {
		return nil, err
	}
	var faults []string
	for entry := range strings.SplitSeq(log, "\x01") {
		if hash, message, ok := strings.Cut(strings.TrimSpace(entry), "\x00"); ok {
			known := slices.ContainsFunc(published, func(start string) bool { return strings.HasPrefix(hash, start) })
			if fault := messageFault(message); fault != "" && !known {
				faults = append(faults, fmt.Sprintf("commit %s: %s", hash, fault))
			}
		}
	}
	return faults, nil
}

// messageFault describes what is wrong with a commit message, or returns "".
func messageFault(message string) string {
	subject, body, _ := strings.Cut(message, "\n")
	if n := len([]rune(subject)); n > maxSubject {
		return fmt.Sprintf("the subject has %d characters, and at most %d are allowed", n, maxSubject)
	}
	if body != "" && !strings.HasPrefix(body, "\n") {
		return "no blank line between subject and body"
	}
	words := 0
	for line := range strings.Lines(body) {
		if !trailer.MatchString(line) {
			words += len(strings.Fields(line))
		}
	}
	if words < 4 {
		return "no body that says why"
	}
	return ""
}
