"""The report: one HTML file that shows what runs did. `collect` reads their folders, `charts` draws, `page` writes."""
