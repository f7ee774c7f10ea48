"""What the two Prophesee datasets share: layouts, boxes, and the archives of histograms made from them."""
